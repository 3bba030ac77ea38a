"""Compares a run with its parent, whose weights it began with: curves, results, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.errors import UserError
from runner.reporting.console.format import GRADIENT_NORM, SPLITS, format_number
from runner.reporting.report.html import Cell, Page, escape, render_bullets, render_table
from runner.reporting.report.plotly_curves import COLOURS, Curve, Figure, read_curves
from runner.reporting.report.plotly_run import over_updates, trace_of_split
from runner.reporting.report.records import RunRecord, format_setting, read_run
from runner.rundir.diff import diff_settings
from runner.rundir.readers import check_shapes, read_optional_json

_FIGURES_SHOWN = 6
_SETTINGS_SHOWN = 30
_PARENT_COLOUR = "#64748b"


def parent_section(page: Page, run: RunRecord, curves: Mapping[str, Curve]) -> str:
    """Return the comparison of a run with its parent; empty for a run without a warm start.

    Args:
        curves: of the run, by `split/metric`.

    Raises:
        UserError: if `warm_start.json` is of another form than a run writes.
    """
    source = (run.meta.get("identity") or {}).get("checkpoint.init_from")
    if not source:
        return ""
    path = run.folder / "warm_start.json"
    content = read_optional_json(path)
    check_shapes(path, content, {"lines": list})
    lines = [str(line).strip() for line in content.get("lines") or ()]
    carried = f"<h3>What was taken over</h3>{render_bullets(lines)}" if lines else ""
    folder = Path(str(source))
    folder = folder if (folder / "meta.json").exists() else folder.parent.parent
    try:
        parent = read_run(folder, folder.name)
    except UserError as error:
        note = f'<p class="note">The run it started from cannot be read: {escape(error)}</p>'
        return note + carried
    note = (
        f'<p class="note">It started from the weights of {escape(folder)} (the parent, '
        f"{escape(parent.status)}), whose updates are counted from its own start.</p>"
    )
    grid = page.add_grid(_figures(curves, read_curves(parent), run.monitor[0]))
    return note + _results(run, parent) + grid + carried + _settings(run, parent)


def _results(run: RunRecord, parent: RunRecord) -> str:
    rows = []
    for name in sorted(run.metrics, key=lambda n: n.count("/")):  # whole splits before slices
        if name not in parent.metrics or name.startswith(GRADIENT_NORM):
            continue
        own_value, parent_value = run.metrics[name], parent.metrics[name]
        numbers = [own_value, parent_value, own_value - parent_value]
        texts = [*map(format_number, numbers[:2]), f"{own_value - parent_value:+.5f}"]
        rows.append([Cell(name), *(Cell(t, n, "num") for t, n in zip(texts, numbers))])
    header = ["metric", "this run", "parent", "difference"]
    return render_table(header, rows, numeric=header[1:], sortable=True) if rows else ""


def _figures(
    curves: Mapping[str, Curve], parent_curves: Mapping[str, Curve], monitored: str
) -> dict[str, Figure]:
    """Return the curves of whole splits that both have, validation first."""
    names = [n for n in curves if n in parent_curves and n.count("/") == 1 and n != GRADIENT_NORM]
    names = [n for n in names if n.split("/")[0] in SPLITS and len(curves[n][0]) > 1]
    names.sort(key=lambda n: (n != monitored, not n.startswith("validation/")))
    return {n: _figure(curves[n], parent_curves[n]) for n in names[:_FIGURES_SHOWN]}


def _figure(run_curve: Curve, parent_curve: Curve) -> Figure:
    traces = []
    for label, curve, colour in (
        ("parent", parent_curve, _PARENT_COLOUR),
        ("run", run_curve, COLOURS[0]),
    ):
        trace = trace_of_split(label, *curve)
        dash = "dash" if label == "parent" else "solid"
        traces.append({**trace, "line": {"color": colour, "width": 2, "dash": dash}})
        traces[-1]["marker"] = {**trace["marker"], "color": colour}
    return over_updates(traces)


def _settings(run: RunRecord, parent: RunRecord) -> str:
    changes = [c for c in diff_settings(parent.settings, run.settings) if "init_" not in c[0]]
    rows = [
        [Cell(key), *(Cell(format_setting(value), css_class="wide") for value in (now, before))]
        for key, before, now in changes[:_SETTINGS_SHOWN]
    ]
    if not rows:
        return ""
    left = len(changes) - len(rows)
    more = f'<p class="note">and {left:,} more (python -m runner diff)</p>' if left else ""
    table = render_table(["setting", "this run", "parent"], rows)
    return f"<h3>Settings that differ</h3>{table}{more}"
