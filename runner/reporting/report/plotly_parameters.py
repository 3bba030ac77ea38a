"""Figures of a search: the effect of parameters on a metric, and its value run after run."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from runner.reporting.report.columns import short_headings
from runner.reporting.report.importance import ParameterImportance
from runner.reporting.report.leaderboard import sort_value
from runner.reporting.report.plotly_curves import (
    COLOURS,
    LEGEND_ABOVE,
    Figure,
    make_figure,
    scatter,
    to_json_numbers,
)
from runner.reporting.report.records import RunRecord, format_setting
from runner.rundir.readers import finite_or_none, parse_number

# amber is worse, blue is better: seen on light and on dark pages
COLOUR_SCALE = [[0, "#fbbf24"], [0.5, "#10b981"], [1, "#2563eb"]]
_STATUS_COLOURS = {"completed": COLOURS[0], "pruned": COLOURS[3]}
_MIN_RUNS = 4  # of a history
_MAX_TICKS = 8
_LEVEL_NAMES = 7  # axes; the names of more are written at an angle, or they would overlap
_TICK_LENGTH = 6  # characters of a value of a grid


def importance_bars(
    shares: Sequence[ParameterImportance], seeds: float | None, metric: str
) -> Figure:
    """Return bars of the shares of a metric's variance, the largest on top.

    Args:
        shares: the largest first.
        seeds: the share of seeds; None if it is unknown.
    """
    names = short_headings([s.key for s in shares])
    bars = [(names[s.key], s.variance_share, COLOURS[0]) for s in shares]
    if seeds is not None:
        bars.append(("seeds (same settings)", seeds, "#94a3b8"))
    bars.reverse()
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [b[0] for b in bars],
        "x": to_json_numbers([b[1] for b in bars]),
        "marker": {"color": [b[2] for b in bars]},
        "text": [f"{b[1]:.1%}" for b in bars],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
    title = {"text": f"share of the variance of {metric}"}
    return make_figure(
        [trace],
        xaxis={"title": title, "tickformat": ".0%", "range": [0, 1.06]},
        yaxis={"type": "category"},
        height=90 + 34 * len(bars),
        margin={"l": 60, "r": 20, "t": 10, "b": 45},
    )


def effect_figure(runs: Sequence[RunRecord], key: str, metric: str) -> Figure:
    """Return the metric over one parameter: a point for each run, a line through the medians."""
    measured = [(r, v) for r in runs if (v := finite_or_none(r.metrics.get(metric))) is not None]
    raw = [r.settings.get(key) for r, _ in measured]
    floats = [parse_number(v) for v in raw]
    is_number = all(f is not None for f in floats) and len(set(floats)) > 1
    xs: list[Any] = floats if is_number else [_truncate(format_setting(v)) for v in raw]
    medians = _medians(xs, [v for _, v in measured], is_number)
    axis: dict[str, Any] = {"title": {"text": short_headings([key])[key]}}
    if is_number and needs_log_axis([f for f in floats if f is not None]):
        axis |= {"type": "log", "dtick": 1}
    elif not is_number:
        axis["type"] = "category"
    points = scatter(
        "markers",
        xs,
        [v for _, v in measured],
        text=[r.label for r, _ in measured],
        marker={"color": COLOURS[0], "opacity": 0.55, "size": 7},
        hovertemplate="%{y:.5g}<extra>%{text}</extra>",
        showlegend=False,
    )
    line = scatter(
        "lines+markers" if is_number else "markers",
        [x for x, _ in medians],
        [y for _, y in medians],
        line={"color": "#94a3b8", "width": 1.5},
        marker={"symbol": "line-ew-open", "size": 16, "color": "#64748b"},
        hovertemplate="median %{y:.5g}<extra></extra>",
        showlegend=False,
    )
    margin = {"l": 55, "r": 10, "t": 10, "b": 45}
    return make_figure([points, line], xaxis=axis, yaxis={}, height=260, margin=margin)


def _truncate(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."


def _medians(xs: Sequence[Any], ys: Sequence[float], is_number: bool) -> list[tuple[Any, float]]:
    groups: dict[Any, list[float]] = {}
    for x, y in zip(xs, ys):
        groups.setdefault(x, []).append(y)
    if is_number and len(groups) > 8:  # hardly any runs share a value
        return []
    medians = [(x, statistics.median(g)) for x, g in groups.items()]
    return sorted(medians) if is_number else medians


def needs_log_axis(values: Sequence[float]) -> bool:
    """Whether positive values span so much that a linear axis would hide the small ones."""
    return min(values) > 0 and max(values) / min(values) >= 50


def parallel_coordinates(
    runs: Sequence[RunRecord], keys: Sequence[str], metric: str, direction: str
) -> Figure | None:
    """Return a line for each run over its settings to its metric; None for too few runs."""
    measured = [r for r in runs if finite_or_none(r.metrics.get(metric)) is not None]
    if len(measured) < 2 or not keys:
        return None
    names = short_headings(keys)
    axes = [_axis(names[k], [r.settings.get(k) for r in measured]) for k in keys]
    values = to_json_numbers([r.metrics[metric] for r in measured])
    axes.append({"label": metric, "values": values})
    # Names of the first axis are outside the drawing area, which would clip them.
    longest = max((len(str(text)) for text in axes[0].get("ticktext", ())), default=0)
    left = max(90, 20 + 7 * longest)
    is_crowded = len(axes) > _LEVEL_NAMES
    trace = {
        "type": "parcoords",
        "dimensions": axes,
        "labelangle": -20 if is_crowded else 0,
        "line": {
            "color": values,
            "colorscale": COLOUR_SCALE,
            "reversescale": direction == "min",
            "showscale": True,
            "colorbar": {"thickness": 12, "title": {"text": ""}},
        },
        "labelfont": {"size": 12},
        "tickfont": {"size": 11},
    }
    top, right = (110, 60) if is_crowded else (60, 40)
    return make_figure([trace], height=420, margin={"l": left, "r": right, "t": top, "b": 30})


def _axis(label: str, raw: Sequence[Any]) -> Figure:
    floats = [parse_number(v) for v in raw]
    numbers = [f for f in floats if f is not None]
    if len(numbers) < len(raw) or len(set(numbers)) < 2:
        texts = [_truncate(format_setting(v)) for v in raw]
        choices = sorted(set(texts))
        places = {text: i for i, text in enumerate(choices)}
        return {
            "label": label,
            "values": [places[t] for t in texts],
            "tickvals": list(range(len(choices))),
            "ticktext": choices,
        }
    distinct = sorted(set(numbers))
    if not needs_log_axis(numbers):
        axis: Figure = {"label": label, "values": to_json_numbers(numbers)}
        return axis | ({"tickvals": distinct} if _are_choices(distinct) else {})
    logs = [math.log10(v) for v in numbers]
    powers = range(math.ceil(min(logs)), math.floor(max(logs)) + 1)
    marks = distinct if _are_choices(distinct) else [10.0**power for power in powers]
    return {
        "label": label,
        "values": to_json_numbers(logs),
        "tickvals": [math.log10(m) for m in marks],
        "ticktext": [f"{m:g}" for m in marks],
    }


def _are_choices(distinct: Sequence[float]) -> bool:
    """Whether the values are few and short, as those of a grid, which all have a mark."""
    return len(distinct) <= _MAX_TICKS and all(len(f"{v:g}") <= _TICK_LENGTH for v in distinct)


def history_figure(runs: Sequence[RunRecord], metric: str, direction: str) -> Figure | None:
    """Return a point for each run and the best completed one so far; None for fewer than four.

    Args:
        runs: in any order.
        direction: max, min or one.
    """
    started = sorted((r for r in runs if r.meta), key=lambda r: str(r.meta.get("created") or ""))
    values = [(n, r, finite_or_none(r.metrics.get(metric))) for n, r in enumerate(started, 1)]
    measured = [(n, r, v) for n, r, v in values if v is not None]
    if len(measured) < _MIN_RUNS:
        return None
    traces: list[Figure] = []
    for status in dict.fromkeys(r.status for _, r, _ in measured):
        chosen = [(n, r, v) for n, r, v in measured if r.status == status]
        traces.append(
            scatter(
                "markers",
                [n for n, _, _ in chosen],
                [v for _, _, v in chosen],
                name=status,
                text=[r.label for _, r, _ in chosen],
                marker={"color": _STATUS_COLOURS.get(status, "#64748b"), "size": 7},
                hovertemplate="%{y:.5g}<extra>%{text}</extra>",
            )
        )
    completed = (v if r.is_completed else None for _, r, v in measured)
    best = itertools.accumulate(
        completed, lambda *two: min(two, key=lambda v: sort_value(v, direction))
    )
    style = {"color": "#64748b", "width": 1.5, "shape": "hv"}
    places = [n for n, _, _ in measured]
    line = scatter("lines", places, [*best], name="best so far", line=style, hoverinfo="skip")
    return make_figure(
        [line, *traces],
        xaxis={"title": {"text": "run"}},
        yaxis={"title": {"text": metric}},
        height=320,
        legend=LEGEND_ABOVE,
    )
