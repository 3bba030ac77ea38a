"""The page of several runs: table, seeds, curves, parameters, failures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from runner.reporting.console.format import format_duration, format_number
from runner.reporting.report.columns import metric_direction
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
from runner.reporting.report.leaderboard import (
    Leaderboard,
    SeedGroup,
    format_run_settings,
    sort_value,
)
from runner.reporting.report.overview import Overview
from runner.reporting.report.plotly_curves import MAX_COLOURED, MAX_CURVES, curve_figures
from runner.reporting.report.plotly_parameters import (
    effect_figure,
    history_figure,
    importance_bars,
    parallel_coordinates,
)
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import finite_or_none

_MAX_AXES = 12  # of parallel coordinates
_MAX_EFFECTS = 6
_LONGEST_LABEL = 80  # characters of a curve's name in the legend
_METRICS_SHOWN = 5  # columns; the others can be chosen
_MOST_NUMBERS = 12_000  # of metrics in the table, so that the page stays below 6 MB


class Links(Protocol):
    """Addresses of runs and their logs on a page."""

    def run(self, run: RunRecord) -> str: ...

    def log(self, run: RunRecord) -> tuple[str, str] | None:
        """Return the name and the address of the log; None if there is none."""


@dataclass(frozen=True)
class FileLinks:
    """Links of a page that is a file in this folder to files of runs."""

    folder: Path

    def run(self, run: RunRecord) -> str:
        """Return the run's own report if there is one, else its folder."""
        report = run.folder / "report.html"
        return self._address(report if report.exists() else run.folder)

    def log(self, run: RunRecord) -> tuple[str, str] | None:
        name = find_log(run)
        return None if name is None else (name, self._address(run.folder / name))

    def _address(self, path: Path) -> str:
        """Return a relative URL: a `#`, `?`, `%` or `:` of a name is quoted."""
        return quote(os.fsencode(os.path.relpath(path, self.folder)))


def find_log(run: RunRecord) -> str | None:
    """Return the name of the run's most informative log on a failure; None without a log."""
    return next((f for f in ("job.log", "log.txt") if (run.folder / f).exists()), None)


def make_overview_page(overview: Overview, links: Links) -> Page:
    """Return the page of several runs."""
    page = Page(overview.title)
    metric, direction = overview.board.monitor
    page.parts.append(f"<h1>{escape(overview.title)}</h1>")
    better = {"max": "higher is better", "min": "lower is better"}.get(direction, "nearest to 1")
    page.parts.append(
        f'<p class="sub">{escape(overview.board.counts)}; judged by {escape(metric)}, {better}'
    )
    page.parts.append(render_facts(_facts(overview)))
    if overview.notes:
        page.add_section("Before you compare", render_bullets(overview.notes), css_class="warn")
    page.add_section("Runs", _runs(overview.board, links))
    if overview.board.has_repeated_settings:
        page.add_section("Over seeds", _seeds(overview.board))
    page.add_section("Curves", _curves(page, overview.board))
    page.add_section("Best so far", _history(page, overview.board))
    _parameters(page, overview)
    page.add_section(f"What went wrong ({len(overview.failures)})", _failures(overview, links))
    return page


def _facts(overview: Overview) -> list[tuple[str, str]]:
    board = overview.board
    metric = board.monitor[0]
    facts = [("runs", f"{len(board.runs):,}")]
    best = _best_value(board, metric)
    if best is not None:
        facts.append((f"best {metric}", format_number(best)))
    if board.seed_groups and board.has_repeated_settings:
        top = board.seed_groups[0]
        if top.std(metric) is not None:
            runs = f", {top.count} seeds" if len(top.runs) < top.num_seeds else ""
            text = top.format_mean_std(metric) + runs
            facts.append((f"best mean over seeds: {board.label(top)}", text))
    if overview.importances:
        largest = overview.importances[0]
        name = board.headings[largest.key]
        facts.append(("matters most", f"{name} ({largest.variance_share:.0%})"))
    seconds = sum(r.seconds for r in board.runs if r.seconds)
    if seconds:
        facts.append(("computing time", format_duration(seconds)))
    return facts


def _runs(board: Leaderboard, links: Links) -> str:
    metrics = board.metrics[: max(_METRICS_SHOWN, _MOST_NUMBERS // len(board.runs))]
    right = [*metrics, "best step", "step", "time"]
    seed = ["seed"] if board.seeds_vary else []
    settings = [board.headings[k] for k in board.keys]
    front = ["front"] if board.secondary_objectives else []
    header = ["status", *front, *metrics[:1], *settings, *seed, *metrics[1:], *right[-3:], "run"]
    best = {m: _best_value(board, m, fewest=2) for m in metrics}
    rows = []
    for run in board.runs:
        numbers = [_number_cell(run, name, best[name]) for name in metrics]
        row = [status_cell(run.status), *(Cell("*" * run.is_pareto_optimal) for _ in front)]
        row += numbers[:1]
        row += [Cell(v) for v in format_run_settings(run, board.keys)]
        row += [Cell("" if run.seed is None else str(run.seed)) for _ in seed]
        row += [*numbers[1:], number_cell(run.best_step), number_cell(run.step)]
        row.append(number_cell(run.seconds, format_duration))
        rows.append([*row, link_cell(links.run(run), run.label)])
    table = render_table(header, rows, numeric=right, sortable=True)
    overall = [name for name in metrics if name.count("/") == 1]  # of all tasks and rows
    hidden = set(metrics) - {*overall[:_METRICS_SHOWN], *metrics[:1], *board.secondary_objectives}
    left_out = len(board.metrics) - len(metrics)
    more = f'<p class="note">{left_out:,} further metrics are in the result.json of each run.</p>'
    told = f"* on the front: no completed run is better in {board.monitor[0]} or "
    told += f"{', '.join(board.secondary_objectives)} without being worse in another of them."
    marked = f'<p class="note">{escape(told)}</p>' if board.secondary_objectives else ""
    return marked + render_table_tools(header, hidden) + table + more * bool(left_out)


def _best_value(board: Leaderboard, name: str, fewest: int = 1) -> float | None:
    """Return the best value of a metric among completed runs; None for fewer than `fewest`."""
    direction = board.monitor[1] if name == board.monitor[0] else metric_direction(name, board.runs)
    completed = [finite_or_none(r.metrics.get(name)) for r in board.runs if r.is_completed]
    values = [v for v in completed if v is not None]
    return min(values, key=lambda v: sort_value(v, direction)) if len(values) >= fewest else None


def _number_cell(run: RunRecord, name: str, best: float | None) -> Cell:
    value = run.metrics.get(name)
    if value is None:
        return number_cell(None)
    finite = finite_or_none(value)
    is_best = finite is not None and finite == best and run.is_completed
    sort_key = "" if finite is None else finite
    return Cell(format_number(value), sort_key, "num best" if is_best else "num")


def _seeds(board: Leaderboard) -> str:
    runs = [run for group in board.seed_groups for run in group.runs]
    names = [m for m in board.metrics if any(m in run.metrics for run in runs)]
    header = [*(board.headings[k] for k in board.keys), "runs", *names]
    rows = []
    for group in board.seed_groups:
        row = [*map(Cell, group.values), Cell(group.count, len(group.runs), "num")]
        row += [Cell(group.format_mean_std(name), group.mean(name), "num") for name in names]
        rows.append(row)
    note = (
        '<p class="note">Mean ± standard deviation (n − 1) of completed runs that differ only in '
        "their seed. “2 of 3” are the runs that completed, or have a value that is not NaN.</p>"
    )
    return note + render_table(header, rows, numeric=["runs", *names], sortable=True)


def _curves(page: Page, board: Leaderboard) -> str:
    top, others = board.seed_groups[:MAX_COLOURED], board.seed_groups[MAX_COLOURED:]
    rest = [r for s in others for r in s.runs]
    rest += [r for r in board.runs if r.meta and not r.is_completed]
    figures = curve_figures(top, rest, partial(_curve_label, board), board.monitor[0])
    num_drawn = min(MAX_CURVES, sum(len(s.runs) for s in top) + len(rest))
    parts = []
    if others:
        parts.append(f"the {MAX_COLOURED} best settings in colours, others in grey")
    elif any(finite_or_none(r.metrics.get(board.monitor[0])) is not None for r in rest):
        parts.append("runs that did not complete in grey")
    if any(len(s.runs) > 1 for s in top):
        parts.append("a line is the mean over seeds, its band one standard deviation")
    if num_drawn < len([r for r in board.runs if r.meta]):
        parts.append(f"the first {num_drawn} of {len(board.runs):,} runs")
    if any("range" in f["layout"]["yaxis"] for f in figures.values()):
        parts.append("where runs diverged the axis is cut: a double click shows all")
    text = "; ".join(parts)
    note = f'<p class="note">{escape(text[:1].upper() + text[1:])}.</p>' if text else ""
    body = page.add_figure_choice(figures)
    return note + body if body else ""


def _curve_label(board: Leaderboard, group: SeedGroup) -> str:
    label = board.label(group)
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 3]}..."


def _history(page: Page, board: Leaderboard) -> str:
    figure = history_figure(board.runs, *board.monitor)
    if figure is None:
        return ""
    note = (
        '<p class="note">Each point is a run, in the order in which they were started; the line '
        "is the best value of the runs completed up to that point.</p>"
    )
    return note + page.add_figure(figure)


def _parameters(page: Page, overview: Overview) -> None:
    metric, direction = overview.board.monitor
    completed = [r for r in overview.board.runs if r.is_completed]
    if overview.importances:
        bars = page.add_figure(
            importance_bars(overview.importances, overview.seed_variance_share, metric)
        )
        note = (
            "How much of the metric's variance between completed runs each parameter explains by "
            "itself, corrected for chance (epsilon squared). The rest up to 100% comes from "
            "combinations of parameters and from seeds."
        )
        page.add_section("Importance", f'<p class="note">{note}</p>{bars}')
    keys = [s.key for s in overview.importances]
    keys += [k for k in overview.board.keys if k not in keys]
    if len(completed) > 2 and keys:
        effects = {key: effect_figure(completed, key, metric) for key in keys[:_MAX_EFFECTS]}
        note = f'<p class="note">{escape(metric)} of each run; the bars are medians.</p>'
        page.add_section("Effects", note + page.add_grid(effects))
    seeds = ["seed"] if overview.board.seeds_vary and len(keys) < _MAX_AXES else []
    measured = [*completed, *(r for r in overview.board.runs if r.status == "pruned")]
    figure = parallel_coordinates(measured, [*keys[:_MAX_AXES], *seeds], metric, direction)
    if figure is not None:
        note = (
            '<p class="note">Each line is a run; a pruned run has the value at which it was '
            "stopped. Drag along an axis to show only the runs of that part.</p>"
        )
        page.add_section("Parallel coordinates", note + page.add_figure(figure))


def _failures(overview: Overview, links: Links) -> str:
    if not overview.failures:
        return ""
    board, rows = overview.board, []
    for run in overview.failures:
        cells = zip(board.keys, format_run_settings(run, board.keys))
        settings = ", ".join(f"{board.headings[k]}={v}" for k, v in cells if v)
        log = links.log(run)
        rows.append(
            [
                Cell(run.label, css_class="wide"),
                Cell(settings, css_class="wide"),
                status_cell(run.status),
                number_cell(run.step),
                Cell(run.error or "", css_class="wide"),
                Cell("") if log is None else link_cell(log[1], log[0]),
            ]
        )
    return render_table(
        ["run", "settings", "status", "step", "last line", "log"], rows, numeric=["step"]
    )
