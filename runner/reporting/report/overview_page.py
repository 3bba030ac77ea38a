"""The page of several runs: table, seeds, curves, parameters, failures."""

from __future__ import annotations

import os
from pathlib import Path

from runner.reporting.console.format import format_duration, format_number
from runner.reporting.report.columns import metric_direction
from runner.reporting.report.html import (
    Cell,
    Page,
    escape,
    render_bullets,
    render_facts,
    render_table,
    status_cell,
)
from runner.reporting.report.leaderboard import format_run_settings, sort_value
from runner.reporting.report.overview import Overview
from runner.reporting.report.plotly_curves import MAX_COLOURED, MAX_CURVES, curve_figures
from runner.reporting.report.plotly_parameters import (
    effect_figure,
    importance_bars,
    parallel_coordinates,
)
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import finite_or_none

_MAX_AXES = 12  # of parallel coordinates
_MAX_EFFECTS = 6


def make_overview_page(overview: Overview, page_path: Path) -> Page:
    """Return the page of several runs.

    Args:
        overview: the runs.
        page_path: the file that the page will be, from which it links to the runs.
    """
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
    page.add_section("Runs", _runs(overview, page_path.parent))
    if overview.board.has_repeated_settings:
        page.add_section("Over seeds", _seeds(overview))
    page.add_section("Curves", _curves(page, overview))
    _parameters(page, overview)
    page.add_section(
        f"What went wrong ({len(overview.failures)})", _failures(overview, page_path.parent)
    )
    return page


def _facts(view: Overview) -> list[tuple[str, str]]:
    metric, direction = view.board.monitor
    done = [
        r
        for r in view.board.runs
        if r.is_completed and finite_or_none(r.metrics.get(metric)) is not None
    ]
    facts = [("runs", f"{len(view.board.runs):,}")]
    if done:
        best = min(done, key=lambda r: sort_value(r.metrics[metric], direction))
        facts.append((f"best {metric}", format_number(best.metrics[metric])))
    if view.board.seed_groups and view.board.has_repeated_settings:
        top = view.board.seed_groups[0]
        mean, spread = top.mean(metric), top.std(metric)
        if mean is not None and spread is not None:
            text = f"{format_number(mean)} ± {spread:.2g}"
            facts.append((f"best mean over seeds: {view.board.label(top)}", text))
    if view.importances:
        top_share = view.importances[0]
        facts.append(
            (
                "matters most",
                f"{view.board.headings[top_share.key]} ({top_share.variance_share:.0%})",
            )
        )
    seconds = sum(r.seconds for r in view.board.runs if r.seconds)
    if seconds:
        facts.append(("computing", format_duration(seconds)))
    return facts


def _runs(view: Overview, base: Path) -> str:
    header = [
        *(view.board.headings[k] for k in view.board.keys),
        *(["seed"] if view.board.seeds_vary else []),
    ]
    right = [*view.board.metrics, "best step", "step", "time"]
    header += ["status", *right, "run"]
    best = {m: _best_of(view, m) for m in view.board.metrics}
    rows = []
    for run in view.board.runs:
        row = [Cell(v) for v in format_run_settings(run, view.board.keys)]
        row += [Cell(str(run.seed if run.meta else ""))] if view.board.seeds_vary else []
        row.append(status_cell(run.status))
        for name in view.board.metrics:
            row.append(_number_cell(run, name, best[name]))
        row.append(_count(run.best_step))
        row.append(_count(run.step))
        time = "" if run.seconds is None else format_duration(run.seconds)
        row.append(Cell(time, "" if run.seconds is None else run.seconds, "num"))
        row.append(Cell(_link(run, base), run.label, is_html=True))
        rows.append(row)
    return render_table(header, rows, numeric=right, sortable=True)


def _best_of(view: Overview, name: str) -> float | None:
    direction = view.board.monitor[1] if name == view.board.monitor[0] else metric_direction(name)
    there = [
        v for r in view.board.runs if r.is_completed and (v := finite_or_none(r.metrics.get(name)))
    ]
    return min(there, key=lambda v: sort_value(v, direction)) if len(there) > 1 else None


def _number_cell(run: RunRecord, name: str, best: float | None) -> Cell:
    value = run.metrics.get(name)
    if value is None:
        return Cell("", "", "num")
    known = finite_or_none(value)
    kind = "num best" if known is not None and known == best and run.is_completed else "num"
    return Cell(format_number(value), "" if known is None else known, kind)


def _count(value: int | None) -> Cell:
    return Cell("" if value is None else f"{value:,}", "" if value is None else value, "num")


def _link(run: RunRecord, base: Path) -> str:
    """Return a link to the run's own report if there is one, else to its folder."""
    report = run.folder / "report.html"
    target = report if report.exists() else run.folder
    href = os.path.relpath(target, base)
    return f'<a href="{escape(href)}">{escape(run.label)}</a>'


def _seeds(view: Overview) -> str:
    names = [
        m for m in view.board.metrics if any(s.mean(m) is not None for s in view.board.seed_groups)
    ]
    header = [*(view.board.headings[k] for k in view.board.keys), "runs", *names]
    rows = []
    for one in view.board.seed_groups:
        row = [Cell(v) for v in one.values] + [Cell(str(len(one.runs)), len(one.runs), "num")]
        for name in names:
            mean, spread = one.mean(name), one.std(name)
            text = "" if mean is None else format_number(mean)
            text += "" if spread is None else f" ± {spread:.2g}"
            row.append(Cell(text, "" if mean is None else mean, "num"))
        rows.append(row)
    note = '<p class="note">Mean ± standard deviation (n − 1) of completed runs that differ only '
    return f"{note}in their seed.</p>{render_table(header, rows, numeric=['runs', *names], sortable=True)}"


def _curves(page: Page, view: Overview) -> str:
    top = view.board.seed_groups[:MAX_COLOURED]
    rest = [r for s in view.board.seed_groups[MAX_COLOURED:] for r in s.runs]
    rest += [r for r in view.board.runs if r.meta and not r.is_completed]
    figures = curve_figures(top, rest, view.board.label, view.board.monitor[0])
    num_drawn = min(MAX_CURVES, sum(len(s.runs) for s in top) + len(rest))
    parts = []
    if len(view.board.seed_groups) > MAX_COLOURED:
        parts.append(f"the {MAX_COLOURED} best settings in colours, others in grey")
    if any(len(s.runs) > 1 for s in top):
        parts.append("a line is the mean over seeds, its band one standard deviation")
    if num_drawn < len([r for r in view.board.runs if r.meta]):
        parts.append(f"the first {num_drawn} of {len(view.board.runs):,} runs")
    if any("range" in f["layout"]["yaxis"] for f in figures.values()):
        parts.append("where runs diverged the axis is cut: a double click shows all")
    text = "; ".join(parts)
    note = f'<p class="note">{escape(text[:1].upper() + text[1:])}.</p>' if text else ""
    body = page.add_figure_choice(figures, "Metric")
    return note + body if body else ""


def _parameters(page: Page, view: Overview) -> None:
    metric, direction = view.board.monitor
    done = [r for r in view.board.runs if r.is_completed]
    if view.importances:
        bars = page.add_figure(importance_bars(view.importances, view.seed_variance_share, metric))
        note = (
            "How much of the metric's variance between completed runs the means of a parameter's "
            "values explain, corrected for chance (epsilon squared). It is the effect of each "
            "alone: what is missing to 100% belongs to combinations and to seeds."
        )
        page.add_section("Importance", f'<p class="note">{note}</p>{bars}')
    keys = [s.key for s in view.importances] + [k for k in view.board.keys if k not in _keys(view)]
    if len(done) > 2 and keys:
        effects = [
            page.add_figure(effect_figure(done, key, metric, direction), key)
            for key in keys[:_MAX_EFFECTS]
        ]
        note = f'<p class="note">{escape(metric)} of each run; the bars are medians.</p>'
        page.add_section("Effects", f'{note}<div class="grid">{"".join(effects)}</div>')
    seeds = ["seed"] if view.board.seeds_vary and len(keys) < _MAX_AXES else []
    figure = parallel_coordinates(done, [*keys[:_MAX_AXES], *seeds], metric, direction)
    if figure is not None:
        note = '<p class="note">A line a run. Drag along an axis to keep only a part of it.</p>'
        page.add_section("Parallel coordinates", note + page.add_figure(figure))


def _keys(view: Overview) -> set[str]:
    return {s.key for s in view.importances}


def _failures(view: Overview, base: Path) -> str:
    if not view.failures:
        return ""
    rows = []
    for run in view.failures:
        what = ", ".join(
            f"{view.board.headings[k]}={v}"
            for k, v in zip(view.board.keys, format_run_settings(run, view.board.keys))
            if v
        )
        log = next((f for f in ("job.log", "log.txt") if (run.folder / f).exists()), None)
        link = ""
        if log is not None:
            href = os.path.relpath(run.folder / log, base)
            link = f'<a href="{escape(href)}">{log}</a>'
        rows.append(
            [
                Cell(run.label, css_class="wide"),
                Cell(what, css_class="wide"),
                status_cell(run.status),
                Cell("" if run.step is None else f"{run.step:,}", css_class="num"),
                Cell(run.error or "", css_class="wide"),
                Cell(link, is_html=True),
            ]
        )
    return render_table(
        ["run", "settings", "status", "step", "last line", "log"], rows, numeric=["step"]
    )
