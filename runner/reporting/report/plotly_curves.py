"""Curves of several runs, as the JSON that `Plotly.newPlot` takes.

Figures are plain dictionaries: plotly's Python classes take seconds for a thousand runs and add
nothing. The tests build the classes from them, which checks every property.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.reporting.console.format import SPLITS
from runner.reporting.report.leaderboard import SeedGroup
from runner.reporting.report.records import RunRecord
from runner.rundir.json_files import read_jsonl
from runner.rundir.readers import numeric_values

Figure = dict[str, Any]
Curve = tuple[list[float], list[float]]  # updates and values

COLOURS = (
    *("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed"),
    *("#0891b2", "#db2777", "#65a30d", "#4b5563", "#92400e"),
)
GREY = "rgba(100,116,139,0.5)"
GRID = "#e5e7eb"
MAX_COLOURED = len(COLOURS)
MAX_CURVES = 60  # more of them cannot be distinguished
_MAX_POINTS = 400  # of one curve
LEGEND_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
SMALL_MARGIN = {"l": 60, "r": 15, "t": 10, "b": 40}


def make_figure(traces: Sequence[Figure], **more: Any) -> Figure:
    """Return traces in the layout that all figures share, with further keys of it."""
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": "#cbd5e1", "automargin": True}
    layout: dict[str, Any] = {
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#ffffff",
        "margin": {"l": 60, "r": 20, "t": 30, "b": 45},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#cbd5e1", "activecolor": "#2563eb"},
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
    }
    for key, value in more.items():
        layout[key] = {**axis, **value} if key.startswith(("xaxis", "yaxis")) else value
    return {"data": list(traces), "layout": layout}


def scatter(mode: str, xs: Sequence[Any], ys: Sequence[float | None], **more: Any) -> Figure:
    """Return a trace of lines or markers, with further keys of it."""
    return {"type": "scatter", "mode": mode, "x": list(xs), "y": to_json_numbers(ys), **more}


def read_curves(run: RunRecord) -> dict[str, Curve]:
    """Return steps and values of a run's log by `split/metric`; long curves are thinned evenly."""
    curves: dict[str, Curve] = {}
    for row in read_jsonl(run.folder / "metrics.jsonl"):
        values = numeric_values(row)
        step = values.get("step")
        if step is None:
            continue
        for name, value in values.items():
            if name not in ("step", "examples"):
                steps, ys = curves.setdefault(f"{row.get('split')}/{name}", ([], []))
                steps.append(step)
                ys.append(value)
    return {name: thin_curve(*curve) for name, curve in curves.items()}


def thin_curve(xs: list[float], ys: list[float]) -> Curve:
    """Return at most 400 points of a curve, the last one among them."""
    every = math.ceil(len(xs) / _MAX_POINTS)
    if every <= 1:
        return xs, ys
    picks = list(range((len(xs) - 1) % every, len(xs), every))
    return [xs[i] for i in picks], [ys[i] for i in picks]


def to_json_numbers(values: Sequence[float | None]) -> list[float | None]:
    """Return numbers for JSON, with a gap for NaN and infinity, and six digits."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.6g}") for v in values]


def curve_figures(
    groups: Sequence[SeedGroup],
    grey_runs: Sequence[RunRecord],
    labels: Callable[[SeedGroup], str],
    first_metric: str,
) -> dict[str, Figure]:
    """Return a figure for each metric that any run logged more than once.

    Each group has a colour: the mean over seeds is a line, one standard deviation a band. If a seed
    has NaN, a mean would hide the others, and each seed is a line.

    Args:
        groups: settings with colours, the best first.
    """
    runs: list[tuple[int, str, RunRecord]] = []
    for number, group in enumerate(groups):
        runs += [(number, labels(group), run) for run in group.runs]
    runs += [(MAX_COLOURED, f"{r.label} ({r.status})", r) for r in grey_runs]
    logs = [(n, label, read_curves(run)) for n, label, run in runs[:MAX_CURVES]]
    names = dict.fromkeys(m for _, _, log in logs for m, (xs, _) in log.items() if len(xs) > 1)
    figures = {}
    for name in sorted(names, key=lambda n: (n != first_metric, _curve_order(n))):
        traces: list[Figure] = []
        members: dict[int, list[tuple[str, Curve]]] = {}
        for number, label, log in logs:
            if name in log:
                members.setdefault(number, []).append((label, log[name]))
        for number in sorted(members, reverse=True):  # the best are drawn last, on top
            traces += _coloured(number, members[number]) if number < MAX_COLOURED else []
            traces += _grey(members[number]) if number >= MAX_COLOURED else []
        figures[name] = make_figure(
            traces,
            xaxis={"title": {"text": "updates"}},
            yaxis={"title": {"text": name}, **y_range_without_outliers(traces)},
            height=440 + 16 * min(len(groups), MAX_COLOURED),  # the legend has half of it
        )
    return figures


def y_range_without_outliers(traces: Sequence[Figure]) -> dict[str, Any]:
    """Return a range for the y axis if a few points, as of a diverged run, would hide the rest."""
    ys = sorted(y for t in traces for y in t["y"] if y is not None)
    if len(ys) < 20:
        return {}
    low, high = ys[len(ys) // 20], ys[-1 - len(ys) // 20]
    width = high - low
    if width <= 0 or ys[-1] - ys[0] <= 5 * width:
        return {}
    return {"range": [max(ys[0], low - width / 4), min(ys[-1], high + width / 4)]}


def _curve_order(name: str) -> tuple[bool, bool, int, str]:
    split, _, metric = name.partition("/")
    place = SPLITS.index(split) if split in SPLITS else 9
    return metric.startswith("lr/"), split == "train", place, metric


def _coloured(number: int, members: Sequence[tuple[str, Any]]) -> list[Figure]:
    colour, label = COLOURS[number], members[0][0]
    steps = [xs for _, (xs, _) in members]
    line = {"color": colour, "width": 2}
    is_finite = all(math.isfinite(y) for _, (_, ys) in members for y in ys)
    if len(members) == 1 or any(xs != steps[0] for xs in steps) or not is_finite:
        return [
            _line(label, xs, ys, line, show=i == 0, group=str(number), rank=number)
            for i, (_, (xs, ys)) in enumerate(members)
        ]
    columns = list(zip(*(ys for _, (_, ys) in members)))
    means = [math.fsum(c) / len(c) for c in columns]
    spread = [
        math.sqrt(math.fsum((v - m) ** 2 for v in c) / (len(c) - 1)) for c, m in zip(columns, means)
    ]
    above = [m + s for m, s in zip(means, spread)]
    below = [m - s for m, s in zip(means, spread)]
    band = scatter(
        "lines",
        to_json_numbers([*steps[0], *steps[0][::-1]]),
        [*above, *below[::-1]],
        fill="toself",
        fillcolor=_transparent(colour),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=str(number),
    )
    name = f"{label} (mean of {len(members)})"
    return [band, _line(name, steps[0], means, line, show=True, group=str(number), rank=number)]


def _grey(members: Sequence[tuple[str, Any]]) -> list[Figure]:
    line = {"color": GREY, "width": 1}
    return [_line(label, xs, ys, line, show=False, group="rest") for label, (xs, ys) in members]


def _line(
    name: str,
    xs: Sequence[float],
    ys: Sequence[float],
    line: Mapping[str, Any],
    *,
    show: bool,
    group: str,
    rank: int = 1000,
) -> Figure:
    return scatter(
        # A run that was pruned at its first evaluation has one point, which no line shows.
        "lines" if len(xs) > 1 else "markers",
        to_json_numbers(xs),
        ys,
        name=name,
        line=dict(line),
        marker={"color": line["color"], "size": 6},
        showlegend=show,
        legendgroup=group,
        legendrank=rank + 1,
        hovertemplate="%{y:.5g} at %{x:,}<extra>" + name.replace("<", "&lt;") + "</extra>",
    )


def _transparent(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
