"""The pages of the board, assembled from the same parts as reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import urlencode

from runner.reporting.board.snapshot import jobs_of
from runner.reporting.console.format import format_duration, format_number
from runner.reporting.report.find import RunSelection
from runner.reporting.report.html import (
    Cell,
    Page,
    escape,
    link_cell,
    number_cell,
    render_bullets,
    render_facts,
    render_table,
    render_table_tools,
    status_cell,
)
from runner.reporting.report.leaderboard import SeedGroup, format_run_settings
from runner.reporting.report.overview import make_overview
from runner.reporting.report.overview_page import find_log, make_overview_page
from runner.reporting.report.plotly_curves import read_curves
from runner.reporting.report.plotly_run import metric_figures
from runner.reporting.report.records import RunRecord
from runner.reporting.report.run_page import make_run_page
from runner.rundir.readers import finite_or_none, last_row, numeric_values

_RUNNING_SHOWN = 6  # runs whose curves are on the first page
_FIGURES_SHOWN = 3  # curves of each
_FAILED_SHOWN = 12
_HEADER = (
    *("compare", "status", "run", "model", "dataset", "metric", "value"),
    *("best step", "step", "time", "started", "last line"),
)


@dataclass(frozen=True)
class BoardLinks:
    """Addresses of the board's own pages."""

    def run(self, run: RunRecord) -> str:
        return f"/run?{_encode(run=run.label)}"

    def log(self, run: RunRecord) -> tuple[str, str] | None:
        name = find_log(run)
        return None if name is None else (name, f"/log?{_encode(run=run.label)}")


LINKS = BoardLinks()


def _encode(**values: str) -> str:
    return urlencode(values, errors="surrogateescape")  # a folder's name may be no UTF-8


def make_index(selection: RunSelection, root: Path) -> Page:
    """Return the first page: running and failed runs, all sweeps and runs."""
    page = Page(f"Board of {root}")
    runs = sorted(selection.runs, key=lambda r: str(r.meta.get("created") or ""), reverse=True)
    counts = Counter(run.status for run in runs)
    page.parts.append(f"<h1>{escape(page.title)}</h1>")
    listed = ", ".join(f"{count:,} {status}" for status, count in counts.most_common())
    page.parts.append(
        f'<p class="sub">{escape(listed or "no run yet")}; <span id="live" role="status">this page '
        "keeps itself up to date</span></p>"
    )
    if not runs:
        page.add_section("Nothing here yet", _first_steps(root))
    problems = render_bullets(selection.problems)
    page.add_section("What cannot be read", problems if runs else "", css_class="warn")
    for run in [r for r in runs if r.status == "running"][:_RUNNING_SHOWN]:
        page.add_section(f"Running: {run.label}", _running(page, run))
    page.add_section("Failed last", _failed(runs))
    page.add_section("Sweeps", _sweeps(selection))
    sweeps = set(selection.sweeps)
    page.add_section("Runs", _runs([r for r in runs if r.folder.parent not in sweeps]))
    return page


def make_board_run_page(run: RunRecord) -> Page:
    """Return the report of one run, with links to all runs and to its log."""
    page = make_run_page(run)
    log = LINKS.log(run)
    shown = "" if log is None else f' · <a href="{escape(log[1])}">{escape(log[0])}</a>'
    page.parts.insert(0, _link_to_all(shown))
    return page


def make_sweep_page(selection: RunSelection, sweep: Path, label: str) -> Page:
    """Return the report of a sweep."""
    jobs = tuple(jobs_of(sweep, selection.runs))
    page = _make_overview(RunSelection(jobs, (), (sweep,)), f"Sweep {label}")
    if (sweep / "study.db").exists():
        command = f"optuna-dashboard sqlite:///{sweep / 'study.db'}"
        note = "Slices, contours and ranks of the search, by a program of its own:"
        page.add_section("More", f'<p class="note">{note}</p><pre>{escape(command)}</pre>')
    return page


def make_comparison(runs: Sequence[RunRecord]) -> Page:
    """Return the report of chosen runs side by side."""
    return _make_overview(RunSelection(tuple(runs), (), ()), f"{len(runs):,} runs side by side")


def _make_overview(selection: RunSelection, title: str) -> Page:
    page = make_overview_page(make_overview(selection, title), LINKS)
    page.parts.insert(0, _link_to_all())
    return page


def sweep_label(sweep: Path, root: Path) -> str:
    """Return the name of a sweep on the board."""
    return str(sweep.relative_to(root)) if sweep != root else sweep.name


def _link_to_all(more: str = "") -> str:
    return (
        '<p class="note"><a href="/">All runs and sweeps</a>'
        f'{more} <span id="live" role="status"></span></p>'
    )


def _first_steps(root: Path) -> str:
    return (
        f"<p>{escape(root)} holds no run. This command makes one, which appears here while it "
        f"trains:</p><pre>python -m runner hydra.run.dir={escape(root / 'first')}</pre>"
    )


def _running(page: Page, run: RunRecord) -> str:
    speed = numeric_values(last_row(run.folder / "perf.jsonl"))
    facts = [] if run.step is None else [("updates", f"{run.step:,}")]
    if "examples_per_s" in speed:
        facts.append(("examples a second", f"{speed['examples_per_s']:,.0f}"))
    facts += [(name, format_number(value)) for name, value in list(run.metrics.items())[:5]]
    all_figures = metric_figures(read_curves(run), best=run.best_step)
    figures = dict(islice(all_figures.items(), _FIGURES_SHOWN))
    link = f'<p><a href="{escape(LINKS.run(run))}">the whole run</a></p>'
    return link + render_facts(facts) + page.add_grid(figures)


def _failed(runs: Sequence[RunRecord]) -> str:
    failed = [run for run in runs if run.status in ("failed", "incomplete")][:_FAILED_SHOWN]
    rows = [
        [
            link_cell(LINKS.run(r), r.label, "wide"),
            Cell(r.error or "", css_class="wide"),
            _log_cell(r),
        ]
        for r in failed
    ]
    return render_table(["run", "last line", "log"], rows) if rows else ""


def _log_cell(run: RunRecord) -> Cell:
    log = LINKS.log(run)
    return Cell("") if log is None else link_cell(log[1], log[0])


def _sweeps(selection: RunSelection) -> str:
    rows = []
    for sweep in selection.sweeps:
        jobs = jobs_of(sweep, selection.runs)
        if not jobs:
            continue
        board = make_overview(RunSelection(tuple(jobs), (), (sweep,)), "").board
        best = next((r for r in board.runs if r.is_completed), None)
        value, by = None, ""
        if best is not None:
            value = finite_or_none(best.metrics.get(board.monitor[0]))
            values = tuple(format_run_settings(best, board.keys))
            by = board.label(SeedGroup(values, (best,)))
        rows.append(
            [
                link_cell(f"/sweep?{_encode(sweep=str(sweep))}", sweep.name),
                Cell(board.counts),
                Cell(board.monitor[0]),
                number_cell(value, format_number),
                Cell(by, css_class="wide"),
            ]
        )
    header = ["sweep", "jobs", "metric", "best", "by"]
    return render_table(header, rows, numeric=["best"], sortable=True) if rows else ""


def _runs(runs: Sequence[RunRecord]) -> str:
    if not runs:
        return ""
    rows = []
    for run in runs:
        value = finite_or_none(run.metrics.get(run.monitor[0]))
        box = (
            f'<input type="checkbox" name="run" form="compare" value="{escape(run.label)}" '
            f'aria-label="compare {escape(run.label)}">'
        )
        rows.append(
            [
                Cell(box, "", is_html=True),
                status_cell(run.status),
                link_cell(LINKS.run(run), run.label),
                *(Cell(str(run.choices.get(group) or "")) for group in ("model", "dataset")),
                Cell(run.monitor[0]),
                number_cell(value, format_number),
                number_cell(run.best_step),
                number_cell(run.step),
                number_cell(run.seconds or None, format_duration),
                Cell(str(run.meta.get("created") or "")[:19].replace("T", " ")),
                Cell("" if run.is_completed else run.error or "", css_class="wide"),
            ]
        )
    button = '<form id="compare" action="/compare"><button>Compare the marked runs</button></form>'
    right = ["value", "best step", "step", "time"]
    table = render_table(_HEADER, rows, numeric=right, sortable=True)
    # Failed runs have their own list, and the column would make the table wider than most screens.
    return button + render_table_tools(_HEADER, hidden=["last line"]) + table
