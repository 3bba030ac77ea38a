"""The page of several runs: table, seeds, curves, parameters, failures."""

from __future__ import annotations

import os
from pathlib import Path

from runner.reporting.console.format import duration, number
from runner.reporting.report.columns import badness, direction_of
from runner.reporting.report.html import Cell, Page, bullets, escape, facts, pill, table
from runner.reporting.report.overview import Overview, values_of
from runner.reporting.report.plotly_curves import MOST_COLOURED, MOST_CURVES, curves
from runner.reporting.report.plotly_parameters import effect, importance_bars, parallel
from runner.reporting.report.records import RunRecord, finite

_MOST_AXES = 12  # of parallel coordinates
_MOST_EFFECTS = 6


def several_page(view: Overview, where: Path) -> Page:
    """Args: where: the file that the page will be, from which it links to the runs."""
    page = Page(view.title)
    metric, direction = view.monitor
    page.parts.append(f"<h1>{escape(view.title)}</h1>")
    better = {"max": "higher is better", "min": "lower is better"}.get(direction, "nearest to 1")
    page.parts.append(f'<p class="sub">{escape(view.counts)}; judged by {escape(metric)}, {better}')
    page.parts.append(facts(_facts(view)))
    if view.notes:
        page.section("Before you compare", bullets(view.notes), kind="warn")
    page.section("Runs", _runs(view, where.parent))
    if view.is_repeated:
        page.section("Over seeds", _seeds(view))
    page.section("Curves", _curves(page, view))
    _parameters(page, view)
    page.section(f"What went wrong ({len(view.failures)})", _failures(view, where.parent))
    return page


def _facts(view: Overview) -> list[tuple[str, str]]:
    metric, direction = view.monitor
    done = [r for r in view.runs if r.is_completed and finite(r.metrics.get(metric)) is not None]
    found = [("runs", f"{len(view.runs):,}")]
    if done:
        best = min(done, key=lambda r: badness(r.metrics[metric], direction))
        found.append((f"best {metric}", number(best.metrics[metric])))
    if view.settings and view.is_repeated:
        top = view.settings[0]
        mean, spread = top.mean(metric), top.deviation(metric)
        if mean is not None and spread is not None:
            text = f"{number(mean)} ± {spread:.2g}"
            found.append((f"best mean over seeds: {view.label(top)}", text))
    if view.shares:
        top_share = view.shares[0]
        found.append(("matters most", f"{view.names[top_share.key]} ({top_share.share:.0%})"))
    seconds = sum(r.seconds for r in view.runs if r.seconds)
    if seconds:
        found.append(("computing", duration(seconds)))
    return found


def _runs(view: Overview, base: Path) -> str:
    header = [*(view.names[k] for k in view.keys), *(["seed"] if view.seeds_vary else [])]
    right = [*view.metrics, "best step", "step", "time"]
    header += ["status", *right, "run"]
    best = {m: _best_of(view, m) for m in view.metrics}
    rows = []
    for run in view.runs:
        row = [Cell(v) for v in values_of(run, view.keys)]
        row += [Cell(str(run.seed if run.meta else ""))] if view.seeds_vary else []
        row.append(pill(run.status))
        for name in view.metrics:
            row.append(_number_cell(run, name, best[name]))
        row.append(_count(run.best_step))
        row.append(_count(run.step))
        time = "" if run.seconds is None else duration(run.seconds)
        row.append(Cell(time, "" if run.seconds is None else run.seconds, "num"))
        row.append(Cell(_link(run, base), run.label, markup=True))
        rows.append(row)
    return table(header, rows, numeric=right, sortable=True)


def _best_of(view: Overview, name: str) -> float | None:
    direction = view.monitor[1] if name == view.monitor[0] else direction_of(name)
    there = [v for r in view.runs if r.is_completed and (v := finite(r.metrics.get(name)))]
    return min(there, key=lambda v: badness(v, direction)) if len(there) > 1 else None


def _number_cell(run: RunRecord, name: str, best: float | None) -> Cell:
    value = run.metrics.get(name)
    if value is None:
        return Cell("", "", "num")
    known = finite(value)
    kind = "num best" if known is not None and known == best and run.is_completed else "num"
    return Cell(number(value), "" if known is None else known, kind)


def _count(value: int | None) -> Cell:
    return Cell("" if value is None else f"{value:,}", "" if value is None else value, "num")


def _link(run: RunRecord, base: Path) -> str:
    """To the run's own report where there is one, else to its folder."""
    own = run.folder / "report.html"
    target = own if own.exists() else run.folder
    href = os.path.relpath(target, base)
    return f'<a href="{escape(href)}">{escape(run.label)}</a>'


def _seeds(view: Overview) -> str:
    names = [m for m in view.metrics if any(s.mean(m) is not None for s in view.settings)]
    header = [*(view.names[k] for k in view.keys), "runs", *names]
    rows = []
    for one in view.settings:
        row = [Cell(v) for v in one.values] + [Cell(str(len(one.runs)), len(one.runs), "num")]
        for name in names:
            mean, spread = one.mean(name), one.deviation(name)
            text = "" if mean is None else number(mean)
            text += "" if spread is None else f" ± {spread:.2g}"
            row.append(Cell(text, "" if mean is None else mean, "num"))
        rows.append(row)
    note = '<p class="note">Mean ± standard deviation (n − 1) of completed runs that differ only '
    return f"{note}in their seed.</p>{table(header, rows, numeric=['runs', *names], sortable=True)}"


def _curves(page: Page, view: Overview) -> str:
    top = view.settings[:MOST_COLOURED]
    rest = [r for s in view.settings[MOST_COLOURED:] for r in s.runs]
    rest += [r for r in view.runs if r.meta and not r.is_completed]
    figures = curves(top, rest, view.label, view.monitor[0])
    num_drawn = min(MOST_CURVES, sum(len(s.runs) for s in top) + len(rest))
    parts = []
    if len(view.settings) > MOST_COLOURED:
        parts.append(f"the {MOST_COLOURED} best settings in colours, others in grey")
    if any(len(s.runs) > 1 for s in top):
        parts.append("a line is the mean over seeds, its band one standard deviation")
    if num_drawn < len([r for r in view.runs if r.meta]):
        parts.append(f"the first {num_drawn} of {len(view.runs):,} runs")
    if any("range" in f["layout"]["yaxis"] for f in figures.values()):
        parts.append("where runs diverged the axis is cut: a double click shows all")
    text = "; ".join(parts)
    note = f'<p class="note">{escape(text[:1].upper() + text[1:])}.</p>' if text else ""
    body = page.choice(figures, "Metric")
    return note + body if body else ""


def _parameters(page: Page, view: Overview) -> None:
    metric, direction = view.monitor
    done = [r for r in view.runs if r.is_completed]
    if view.shares:
        bars = page.figure(importance_bars(view.shares, view.seeds_share, metric))
        note = (
            "How much of the metric's variance between completed runs the means of a parameter's "
            "values explain, corrected for chance (epsilon squared). It is the effect of each "
            "alone: what is missing to 100% belongs to combinations and to seeds."
        )
        page.section("Importance", f'<p class="note">{note}</p>{bars}')
    keys = [s.key for s in view.shares] + [k for k in view.keys if k not in _keys(view)]
    if len(done) > 2 and keys:
        effects = [
            page.figure(effect(done, key, metric, direction), key) for key in keys[:_MOST_EFFECTS]
        ]
        note = f'<p class="note">{escape(metric)} of each run; the bars are medians.</p>'
        page.section("Effects", f'{note}<div class="grid">{"".join(effects)}</div>')
    seeds = ["seed"] if view.seeds_vary and len(keys) < _MOST_AXES else []
    figure = parallel(done, [*keys[:_MOST_AXES], *seeds], metric, direction)
    if figure is not None:
        note = '<p class="note">A line a run. Drag along an axis to keep only a part of it.</p>'
        page.section("Parallel coordinates", note + page.figure(figure))


def _keys(view: Overview) -> set[str]:
    return {s.key for s in view.shares}


def _failures(view: Overview, base: Path) -> str:
    if not view.failures:
        return ""
    rows = []
    for run in view.failures:
        what = ", ".join(
            f"{view.names[k]}={v}" for k, v in zip(view.keys, values_of(run, view.keys)) if v
        )
        log = next((f for f in ("job.log", "log.txt") if (run.folder / f).exists()), None)
        link = ""
        if log is not None:
            href = os.path.relpath(run.folder / log, base)
            link = f'<a href="{escape(href)}">{log}</a>'
        rows.append(
            [
                Cell(run.label, kind="wide"),
                Cell(what, kind="wide"),
                pill(run.status),
                Cell("" if run.step is None else f"{run.step:,}", kind="num"),
                Cell(run.error or "", kind="wide"),
                Cell(link, markup=True),
            ]
        )
    return table(["run", "settings", "status", "step", "last line", "log"], rows, numeric=["step"])
