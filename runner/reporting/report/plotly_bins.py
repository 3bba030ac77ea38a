"""Figures of predictions in bins of equal weight: calibration, gain, predictions of each label."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from runner.reporting.report.plotly_curves import (
    COLOURS,
    SMALL_MARGIN,
    Figure,
    make_figure,
    scatter,
    to_json_numbers,
)


def calibration_figure(tasks: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Return the observed rate over the predicted probability, a point for each bin.

    A calibrated model is on the diagonal.

    Args:
        tasks: `predicted`, `observed` and `weight` of each bin, by the task's name.
    """
    most = 0.0
    traces: list[Figure] = []
    for (name, bins), colour in zip(tasks.items(), COLOURS):
        known = filter(math.isfinite, [*bins["predicted"], *bins["observed"]])
        most = max([most, *known])
        trace = _bin_trace(name, bins["predicted"], bins["observed"], colour, legend=len(tasks) > 1)
        rows = [f"{w:,.0f} rows" for w in bins["weight"]]
        text = "predicted %{x:.4f}, observed %{y:.4f}, %{text}<extra></extra>"
        traces.append({**trace, "text": rows, "hovertemplate": text})
    traces.insert(0, _diagonal(most))
    return _bin_figure(traces, "predicted probability", "observed rate")


def gain_figure(tasks: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Return the share of positives over the share of rows with the highest predictions.

    Args:
        tasks: bins as `calibration_figure` takes them, from the lowest prediction to the highest.
    """
    traces: list[Figure] = [_diagonal(1.0)]
    for (name, bins), colour in zip(tasks.items(), COLOURS):
        positives = [o * w for o, w in zip(bins["observed"], bins["weight"])]
        rows, gains = _shares(bins["weight"][::-1]), _shares(positives[::-1])
        lifts = [gain / row if row else 0.0 for gain, row in zip(gains, rows)]
        trace = _bin_trace(name, rows, gains, colour, legend=len(tasks) > 1)
        text = "%{y:.1%} of the positives in %{x:.0%} of the rows, lift %{text}<extra></extra>"
        traces.append({**trace, "text": [f"{v:.2f}" for v in lifts], "hovertemplate": text})
    return _bin_figure(traces, "share of rows, highest predictions first", "share of positives")


def label_figure(tasks: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Return which share of the rows of each label has at most a prediction.

    Args:
        tasks: bins as `calibration_figure` takes them, from the lowest prediction to the highest.
    """
    traces: list[Figure] = []
    for (name, bins), colour in zip(tasks.items(), COLOURS):
        for label, dash in ((1, "solid"), (0, "dot")):
            rates = [o if label else 1 - o for o in bins["observed"]]
            ys = _shares([rate * w for rate, w in zip(rates, bins["weight"])])[1:]
            trace = _bin_trace(f"{name} = {label}", bins["predicted"], ys, colour, legend=True)
            trace["line"] = {**trace["line"], "dash": dash}
            text = "%{y:.1%} have at most %{x:.4f}" + f"<extra>{trace['name']}</extra>"
            traces.append({**trace, "hovertemplate": text})
    return _bin_figure(traces, "predicted probability", "share of the rows of the label")


def _shares(weights: Sequence[float]) -> list[float]:
    """Return 0 and the running sums, as shares of the whole."""
    sums = [0.0, *itertools.accumulate(weights)]
    return [total / sums[-1] if sums[-1] else 0.0 for total in sums]


def _bin_trace(
    name: str, xs: Sequence[float], ys: Sequence[float], colour: str, *, legend: bool
) -> Figure:
    return scatter(
        "lines+markers",
        to_json_numbers(xs),
        ys,
        name=name,
        line={"color": colour, "width": 1.5},
        marker={"color": colour, "size": 5},
        showlegend=legend,
    )


def _bin_figure(traces: list[Figure], x_title: str, y_title: str) -> Figure:
    return make_figure(
        traces,
        xaxis={"title": {"text": x_title}, "rangemode": "tozero"},
        yaxis={"title": {"text": y_title}, "rangemode": "tozero"},
        height=380,
        margin=SMALL_MARGIN,
    )


def _diagonal(most: float) -> Figure:
    line = {"color": "#94a3b8", "dash": "dash", "width": 1}
    return scatter("lines", [0, most], [0, most], line=line, hoverinfo="skip", showlegend=False)
