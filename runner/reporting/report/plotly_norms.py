"""Figures of what a run has recorded of its gradients, weights, embeddings and activations."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.reporting.console.format import GRADIENT_NORM
from runner.reporting.report.plotly_curves import COLOURS, Curve, Figure
from runner.reporting.report.plotly_run import over_updates, trace_of_split

_SCALES_APART = 30  # factor between lines from which on a linear axis would flatten the lower
_MOST_LINES = 8
_HEADINGS = {
    GRADIENT_NORM: "norms of gradients",
    "weights/dense": "{} of dense weights",
    "weights/tables": "{} of embeddings",
    "activations": "activations: {}",
}


def norm_figures(curves: Mapping[str, Curve]) -> dict[str, Figure]:
    """Return a figure for each statistic, with a line for each parameter, table or module.

    Of more than eight lines the highest are drawn. Runs record them with `trainer.log_gradients`
    and the callbacks `weights` and `activations`.

    Args:
        curves: steps and values by `split/name`.
    """
    members: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        prefix = next((p for p in _HEADINGS if name == p or name.startswith(f"{p}/")), None)
        if prefix is None or len(curve[0]) < 2:
            continue
        part, _, statistic = name[len(prefix) + 1 :].rpartition("/")
        if prefix == GRADIENT_NORM:
            part, statistic = statistic or "all", ""
        heading = _HEADINGS[prefix].format(statistic.replace("_", " "))
        members.setdefault(heading, {})[part or statistic] = curve
    return {heading: _figure(lines) for heading, lines in members.items()}


def _figure(lines: Mapping[str, Curve]) -> Figure:
    highest = sorted(lines, key=lambda name: -_last(lines[name]))[:_MOST_LINES]
    traces = [
        {**trace_of_split("train", *lines[name]), "name": name.replace("<", "&lt;")}
        | {"line": {"color": colour, "width": 1.5}}
        for name, colour in zip(highest, COLOURS)
    ]
    for trace in traces:
        trace["hovertemplate"] = f"%{{y:.4g}} at %{{x:,}}<extra>{trace['name']}</extra>"
    lasts = [_last(lines[name]) for name in highest]
    figure = over_updates(traces, log_y=max(lasts) > _SCALES_APART * min(lasts) > 0)
    legend = {"orientation": "h", "y": -0.3, "yanchor": "top", "font": {"size": 10}}
    figure["layout"] |= {"height": 400, "legend": legend}
    return figure


def _last(curve: Curve) -> float:
    return next((y for y in reversed(curve[1]) if math.isfinite(y)), 0.0)
