"""The history of a search: the value of each run in the order of their starts, and the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from runner.reporting.report.leaderboard import sort_value
from runner.reporting.report.plotly_curves import (
    COLOURS,
    LEGEND_ABOVE,
    Figure,
    make_figure,
    scatter,
)
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import finite_or_none

_STATUS_COLOURS = {"completed": COLOURS[0], "pruned": COLOURS[3]}
_MIN_RUNS = 4


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
