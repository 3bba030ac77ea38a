"""The report of one run: its facts, curves, results and data; and what a notebook shows of it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from runner.reporting.console.format import (
    SPLITS,
    TextTable,
    format_duration,
    format_number,
    result_tables,
)
from runner.reporting.report.feature_importance import importance_figure, read_importance
from runner.reporting.report.html import (
    Cell,
    Page,
    escape,
    render_bullets,
    render_facts,
    render_table,
    status_cell,
)
from runner.reporting.report.plotly_curves import COLOURS, Curve, read_curves
from runner.reporting.report.plotly_run import (
    count_parts,
    lr_figure,
    metric_figures,
    norm_figures,
    throughput_figure,
    undefined_metrics,
)
from runner.reporting.report.records import RunRecord, read_run
from runner.reporting.report.run_data import data_section, drift_section, read_data_facts
from runner.reporting.report.run_parent import parent_section
from runner.reporting.report.run_predictions import (
    calibration_section,
    hardest_section,
    predictions_section,
    read_calibration,
)
from runner.rundir.readers import check_shapes, numeric_values
from runner.rundir.regular_files import read_bytes


def make_run_page(run: RunRecord) -> Page:
    """Return the page of one run."""
    page = Page(f"{run.name or run.label}: {run.label}")
    page.parts.append(f"<h1>{escape(run.name or run.label)}</h1>")
    pill = status_cell(run.status).text
    what = "evaluation" if run.kind == "eval" else "training"
    created = str(run.meta.get("created") or "")
    page.parts.append(f'<p class="sub">{pill} {what} {escape(run.label)}, {escape(created)}</p>')
    page.parts.append(render_facts(_facts(run)))
    if run.error:
        page.add_section("What went wrong", f"<pre>{escape(run.error)}</pre>", css_class="warn")
    data = read_data_facts(run)
    page.add_section("Results", _results(run))
    if below := _yardstick(run).get("below"):
        page.add_section("Worse than the baseline", f"<p>{escape(below)}</p>", css_class="warn")
    curves, calibration = read_curves(run), read_calibration(run)
    page.add_section("Curves", _curves(page, run, curves))
    page.add_section("Compared with the run it started from", parent_section(page, run, curves))
    others = {"Learning rate": lr_figure(curves), "Examples a second": throughput_figure(run)}
    drawn = {heading: figure for heading, figure in others.items() if figure}
    page.add_section("Learning rate and speed", page.add_grid(drawn))
    if norms := page.add_grid(norm_figures(curves)):
        note = '<p class="note">Of many lines the eight that end highest are drawn.</p>'
        page.add_section("Norms and activations", note + norms)
    page.add_section("Calibration", calibration_section(page, calibration))
    page.add_section("Predictions by label", predictions_section(page, calibration))
    page.add_section("Rows with the largest loss", hardest_section(run))
    page.add_section("Importance of features", _importance(page, run))
    page.add_section("Data", data_section(data, calibration, _texts(run, "findings")))
    page.add_section("Coverage and drift of features", drift_section(data.get("features") or ()))
    page.add_section("Configuration", _configuration(run), folded=True)
    page.add_section("Code, versions and machine", _provenance(run), folded=True)
    return page


def show_run(out: Console, run: RunRecord, problems: Sequence[str] = ()) -> None:
    """Print the facts and results of one run.

    Args:
        problems: errors of other folders that could not be read.
    """
    for problem in problems:
        out.print(Text(f"note: {problem}", style="yellow"), soft_wrap=True)
    facts = [("run", str(run.folder)), ("status", run.status), *_facts(run)]
    width = 2 + max(16, *(len(name) for name, _ in facts))
    for name, value in facts:
        out.print(Text(f"{name:<{width}}{value}"), soft_wrap=True)
    if run.error:
        out.print(Text(f"{'error':<{width}}{run.error}", style="red"), soft_wrap=True)
    if not run.metrics:
        out.print(Text("no metrics have been logged yet"))
        return
    for heading, table in result_tables_of(run).items():
        for line in [*filter(None, [heading]), *table.lines()]:
            out.print(Text(f"  {line}"), soft_wrap=True)


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    monitored, _ = run.monitor
    names = (monitored, f"test/{monitored.partition('/')[2]}")
    facts = [(name, format_number(run.metrics[name])) for name in names if name in run.metrics]
    counts = {"best at update": run.best_step, "updates": run.step, "examples": run.examples}
    facts += [(name, f"{count:,}") for name, count in counts.items() if count is not None]
    if run.seconds:
        facts.append(("time", format_duration(run.seconds)))
    facts.append(("seed", str(run.seed)))
    facts.append(("signature", run.signature))
    return facts


def _results(run: RunRecord) -> str:
    if not run.metrics:
        return '<p class="note">No metrics have been logged yet.</p>'
    tables = []
    for heading, shown in result_tables_of(run).items():
        rows = [
            [
                Cell(row[0], css_class="dim inner" if row[0].startswith("  ") else ""),
                *(Cell(c, css_class="num") for c in row[1:]),
            ]
            for row in shown.rows
        ]
        table = render_table(list(shown.header), rows, numeric=shown.header[1:])
        tables.append((f"<h3>{escape(heading)}</h3>" if heading else "") + table)
    note, split = "", run.monitor[0].partition("/")[0]
    if run.metrics.keys() - (run.result.get("metrics") or {}).keys():
        note = (
            '<p class="note">What result.json does not have is taken from metrics.jsonl: '
            f"for {escape(split)} its best row, for other splits the last.</p>"
        )
    remarks = _texts(run, "undefined") + [*filter(None, [run.result.get("no_best")])]
    below = "".join(f'<p class="note">{escape(str(remark))}</p>' for remark in remarks)
    return note + "".join(tables) + below


def _curves(page: Page, run: RunRecord, curves: Mapping[str, Curve]) -> str:
    body = page.add_grid(metric_figures(curves, best=run.best_step))
    lost, parts = undefined_metrics(curves), count_parts(run)
    best = "; the dotted vertical line marks the best step" if run.best_step is not None else ""
    notes = [f"A train point is the mean since the previous one{best}."] if body else []
    if body and parts:
        notes.append("Dotted curves are of the train rows, single points of the test rows.")
    if body and parts >= len(COLOURS):
        notes.append(f"The first {len(COLOURS) - 1} of {parts} tasks and slices are drawn.")
    if lost:
        notes.append(f"Never a finite number, and not drawn: {', '.join(lost)}.")
    return f'<p class="note">{escape(" ".join(notes))}</p>{body}' if notes else ""


def result_tables_of(run: RunRecord) -> dict[str, TextTable]:
    """Return the tables of a run's metrics, with the best reachable values and the yardstick.

    Raises:
        UserError: if the run's files are damaged.
    """
    reachable = (read_data_facts(run).get("reachable") or {}).items()
    best = {split: numeric_values(metrics) for split, metrics in reachable}
    return result_tables(run.metrics, best, _yardstick(run))


def _yardstick(run: RunRecord) -> dict[str, Any]:
    """Return the yardstick of the run.

    Raises:
        UserError: if it does not have the form that a run writes.
    """
    yardstick = run.result.get("yardstick") or {}
    path = run.folder / "result.json"
    check_shapes(path, {"yardstick": yardstick}, {"yardstick": dict})
    check_shapes(path, yardstick, {"name": str, "metrics": dict, "below": str})
    return {**yardstick, "metrics": numeric_values(yardstick.get("metrics") or {})}


def _texts(run: RunRecord, key: str) -> list[str]:
    """Return a list of sentences of the result, such as its findings.

    Raises:
        UserError: if it is of another form than a run writes.
    """
    texts = run.result.get(key) or []
    check_shapes(run.folder / "result.json", {key: texts}, {key: list})
    return [str(text) for text in texts]


def _importance(page: Page, run: RunRecord) -> str:
    """Return bars of the importances that `importance` has measured, if any."""
    facts = read_importance(run.folder)
    if not facts:
        return ""
    figure, note = importance_figure(facts)
    return f'<p class="note">{escape(note)}</p>{page.add_figure(figure)}'


def _configuration(run: RunRecord) -> str:
    path = run.folder / "config.yaml"
    try:
        text = read_bytes(path).decode(errors="replace")
    except OSError as error:
        return f'<p class="note">{escape(path)}: {escape(error.strerror or error)}</p>'
    resumes = run.meta.get("resumes") or ()
    starts = [("Given on the command line", run.meta)]
    starts += [(f"Given to resume on {resume.get('at')}", resume) for resume in resumes]
    head = "".join(
        f'<p class="note">{escape(heading)}:</p>{render_bullets(start["overrides"])}<br>'
        for heading, start in starts
        if start.get("overrides") and "refused" not in start
    )
    return f"{head}<pre>{escape(text)}</pre>"


def _provenance(run: RunRecord) -> str:
    meta = run.meta
    git = meta.get("git") or {}
    changed = " with uncommitted changes" if git.get("patch") else ""
    versions = ", ".join(f"{k} {v}" for k, v in (meta.get("versions") or {}).items())
    words = [str(word) for word in meta.get("command") or []]
    pairs = [
        ("command", " ".join([*map(os.path.basename, words[:1]), *words[1:]])),
        ("commit", f"{git.get('commit') or 'not in git'}{changed}"),
        ("versions", f"python {meta.get('python')}, {versions}"),
        ("machine", f"{meta.get('host')}, {meta.get('platform')}, {meta.get('cpus')} CPUs"),
        ("resumed", f"{len(meta.get('resumes') or [])} times"),
        ("warm start", str((meta.get("identity") or {}).get("checkpoint.init_from") or "no")),
    ]
    return render_table(["", ""], [[Cell(k), Cell(v, css_class="wide")] for k, v in pairs])


def render_for_notebook(folder: Path) -> str:
    """Return HTML without scripts, which any viewer of notebooks shows.

    Raises:
        UserError: if the run cannot be read.
    """
    run = read_run(folder, folder.name)
    step = "" if run.step is None else f" at step {run.step:,}"
    best = "" if run.best_step is None else f"; best at step {run.best_step:,}"
    parts = [f"<p><b>{escape(run.name or run.label)}</b>: {escape(run.status)}{step}{best}</p>"]
    if run.error:
        parts.append(f"<p>{escape(run.error)}</p>")
    for heading, table in result_tables_of(run).items():
        rows = [[Cell(text.replace("  ", "\u2003")) for text in row] for row in table.rows]
        parts.append(f"<p>{escape(heading)}</p>" if heading else "")
        parts.append(render_table(list(table.header), rows))
    parts.append(_picture(run))
    parts.append(f"<p><code>{escape(folder)}</code></p>")
    return "".join(parts)


def _picture(run: RunRecord) -> str:
    """Return an SVG of the loss and the monitored metric over the updates; empty without curves."""
    curves = read_curves(run)
    names = dict.fromkeys(["loss", run.monitor[0].partition("/")[2]])
    shown = {
        name: {s: curves[f"{s}/{name}"] for s in SPLITS if f"{s}/{name}" in curves}
        for name in names
    }
    shown = {n: c for n, c in shown.items() if any(len(xs) > 1 for xs, _ in c.values())}
    if not shown:
        return ""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(4.2 * len(shown), 2.6), layout="constrained")
        for place, (name, by_split) in enumerate(shown.items(), 1):
            axes = figure.add_subplot(1, len(shown), place, title=name, xlabel="updates")
            for colour, (split, (xs, ys)) in zip(COLOURS, by_split.items()):
                axes.plot(xs, ys, "-" if len(xs) > 1 else "o", label=split, color=colour)
            axes.grid(color="#d0d7de")
            axes.legend()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
