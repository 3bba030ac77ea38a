"""Renders a run for a notebook: its result as a table, and its curves as a picture."""

from __future__ import annotations

import io
from pathlib import Path

from runner.reporting.console.format import SPLITS
from runner.reporting.report.html import Cell, escape, render_table
from runner.reporting.report.plotly_curves import COLOURS, read_curves
from runner.reporting.report.records import RunRecord, read_run
from runner.reporting.report.run_page import result_tables_of


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
