"""Figures of one run: its metrics, learning rates, speed, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.metrics.names import TRAIN_EVALUATION
from runner.reporting.report.plotly_curves import (
    COLOURS,
    SPLITS,
    Figure,
    figure_layout,
    read_curves,
    thin_curve,
    to_json_numbers,
)
from runner.reporting.report.records import RunRecord
from runner.rundir.json_files import read_jsonl
from runner.rundir.readers import numeric_values

_SPLIT_COLOURS = {
    "train": "#94a3b8",
    TRAIN_EVALUATION: "#475569",
    "validation": COLOURS[0],
    "test": COLOURS[1],
}
_HEIGHT = 280
_MARGIN = {"l": 60, "r": 15, "t": 10, "b": 40}


def metric_figures(run: RunRecord) -> dict[str, Figure]:
    """Return a figure for each metric: train and validation over the updates, test as a point."""
    logs = read_curves(run)
    names = dict.fromkeys(n.partition("/")[2] for n in logs)
    names = dict.fromkeys(sorted((n for n in names if not n.startswith("lr/")), key=_order))
    figures = {}
    for name in names:
        traces = [
            _trace(split, *logs[f"{split}/{name}"]) for split in SPLITS if f"{split}/{name}" in logs
        ]
        if any(len(t["x"]) > 1 for t in traces):
            figures[name] = _over_updates(traces, best=run.best_step)
    return figures


def _order(name: str) -> tuple[int, str]:
    first = ("loss", "auc", "log_loss", "normalized_entropy", "calibration")
    return (first.index(name), "") if name in first else (len(first), name)


def lr_figure(run: RunRecord) -> Figure | None:
    """Return the learning rates of the dense part and of the tables; None if none was logged."""
    logs = {n.partition("/lr/")[2]: c for n, c in read_curves(run).items() if "/lr/" in n}
    if not logs:
        return None
    traces = [
        {**_trace("train", *curve), "name": name, "line": {"color": colour, "width": 2}}
        for (name, curve), colour in zip(logs.items(), COLOURS)
    ]
    figure = _over_updates(traces, log_y=_are_far_apart(traces))
    most = max(y for trace in traces for y in trace["y"])
    if most > 0 and figure["layout"]["yaxis"].get("type") != "log":
        # By default plotly draws a constant rate in the middle of -1 to 1.
        figure["layout"]["yaxis"]["range"] = [0, 1.1 * most]
    return figure


def throughput_figure(run: RunRecord) -> Figure | None:
    """Return examples per second between log points; None for fewer than two of them."""
    rows = [numeric_values(r) for r in read_jsonl(run.folder / "perf.jsonl")]
    rows = [r for r in rows if "examples_per_s" in r and "step" in r]
    if len(rows) < 2:
        return None
    xs, ys = thin_curve([r["step"] for r in rows], [r["examples_per_s"] for r in rows])
    figure = _over_updates([{**_trace("train", xs, ys), "name": "examples/s"}])
    figure["layout"]["yaxis"]["rangemode"] = "tozero"
    return figure


def calibration_figure(tasks: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Return the observed rate over the predicted probability, a point for each bin.

    A calibrated model is on the diagonal.

    Args:
        tasks: `predicted`, `observed` and `weight` of each bin, by the task's name.
    """
    most = 0.0
    traces: list[Figure] = []
    for (name, bins), colour in zip(tasks.items(), COLOURS):
        most = max([most, *bins["predicted"], *bins["observed"]])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": to_json_numbers(bins["predicted"]),
                "y": to_json_numbers(bins["observed"]),
                "text": [f"{w:,.0f} rows" for w in bins["weight"]],
                "line": {"color": colour, "width": 1.5},
                "marker": {"color": colour, "size": 7},
                "hovertemplate": "predicted %{x:.4f}, observed %{y:.4f}, %{text}<extra></extra>",
                "showlegend": len(tasks) > 1,
            }
        )
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, most],
        "y": [0, most],
        "line": {"color": "#94a3b8", "dash": "dash", "width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return {
        "data": [diagonal, *traces],
        "layout": figure_layout(
            xaxis={"title": {"text": "predicted probability"}, "rangemode": "tozero"},
            yaxis={"title": {"text": "observed rate"}, "rangemode": "tozero"},
            height=380,
            margin=_MARGIN,
        ),
    }


def _trace(split: str, xs: Sequence[float], ys: Sequence[float]) -> Figure:
    colour = _SPLIT_COLOURS.get(split, COLOURS[2])
    alone = len(xs) == 1
    return {
        "type": "scatter",
        "mode": "markers" if alone else "lines+markers" if split == "validation" else "lines",
        "name": split,
        "x": to_json_numbers(xs),
        "y": to_json_numbers(ys),
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 10 if alone else 5},
        "hovertemplate": "%{y:.5g} at %{x:,}<extra>" + split + "</extra>",
        "showlegend": True,
    }


def _over_updates(traces: list[Figure], *, best: int | None = None, log_y: bool = False) -> Figure:
    shown: dict[str, Any] = {}
    if best is not None:
        line = {"color": "#94a3b8", "dash": "dot", "width": 1}
        shown["shapes"] = [
            {"type": "line", "x0": best, "x1": best, "y0": 0, "y1": 1, "yref": "paper"}
            | {"line": line}
        ]
    return {
        "data": traces,
        "layout": figure_layout(
            xaxis={"title": {"text": "updates", "standoff": 4}},
            yaxis={"type": "log"} if log_y else {},
            height=_HEIGHT,
            margin=_MARGIN,
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            **shown,
        ),
    }


def _are_far_apart(traces: Sequence[Figure]) -> bool:
    """Whether a linear axis would flatten the lower rate, and no rate comes near 0."""
    means = [sum(t["y"]) / len(t["y"]) for t in traces]
    steady = all(min(t["y"]) > 0.1 * max(t["y"]) for t in traces)
    return steady and max(means) > 8 * min(means) > 0
