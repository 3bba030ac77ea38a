"""Figures of one run: its metrics, learning rates, speed, and the norms that it has recorded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from runner.metrics.names import TRAIN_EVALUATION
from runner.reporting.console.format import GRADIENT_NORM, SCALES_APART, SPLITS
from runner.reporting.report.plotly_curves import (
    COLOURS,
    LEGEND_ABOVE,
    SMALL_MARGIN,
    Curve,
    Figure,
    make_figure,
    scatter,
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
_DASHES = {"train": {"dash": "dot"}, TRAIN_EVALUATION: {"dash": "dash"}}
_HEIGHT = 280
_LINES_APART = 30  # ratio of lines from which on a linear axis would flatten the lower one
_MOST_LINES = 8
_NAMES_ABOVE = 4  # in the legend; more are below the figure
_LEGEND_BELOW = {"orientation": "h", "y": -0.3, "yanchor": "top", "font": {"size": 10}}
_HEADINGS = {
    GRADIENT_NORM: "norms of gradients",
    "weights/dense": "{} of dense weights",
    "weights/tables": "{} of embeddings",
    "activations": "activations: {}",
}


def metric_figures(curves: Mapping[str, Curve], *, best: int | None) -> dict[str, Figure]:
    """Return a figure for each metric over the updates, with the test as a point.

    If tasks or slices were measured separately, they are lines of their metric's figure. A train
    loss of another scale, such as a sum over the places of a sequence, has its own figure.

    Args:
        curves: of the run, by `split/metric`.
        best: the step with a line.
    """
    logs = {n: c for n, c in curves.items() if _is_metric(n)}
    names = sorted(dict.fromkeys(n.split("/")[1] for n in logs), key=_order)
    figures = {}
    for name in names:
        chosen = {n: c for n, c in logs.items() if n.split("/")[1] == name}
        for heading, of_scale in _by_scale(name, chosen).items():
            traces = _traces(of_scale)
            if any(len(t["x"]) > 1 for t in traces) and any(_drawn(t) for t in traces):
                figures[heading] = _of_metric(traces, best)
    return figures


def undefined_metrics(curves: Mapping[str, Curve]) -> list[str]:
    """Return the metrics that were logged, but never as a finite number."""
    values: dict[str, list[float]] = {}
    for name in filter(_is_metric, curves):
        values.setdefault(name.split("/")[1], []).extend(curves[name][1])
    lost = [name for name, ys in values.items() if not any(map(math.isfinite, ys))]
    return sorted(lost, key=_order)


def _is_metric(name: str) -> bool:
    """Whether a name is of a metric of a split, no rate or norm."""
    is_other = "/lr/" in name or name.startswith(GRADIENT_NORM)
    return name.partition("/")[0] in SPLITS and not is_other


def _of_metric(traces: list[Figure], best: int | None) -> Figure:
    figure = over_updates(traces, best=best)
    names = [t["name"] for t in traces if t["showlegend"]]
    if len(names) > _NAMES_ABOVE:  # above the lines they would take the place of these
        legend = {**_LEGEND_BELOW, "y": -0.25, "maxheight": 0.6}
        figure["layout"] |= {"height": _HEIGHT + 17 * len(names), "legend": legend}
    return figure


def count_parts(run: RunRecord) -> int:
    """Return the number of tasks and slices that a run measured separately."""
    names = filter(_is_metric, run.metrics)
    return len({tuple(name.split("/")[2:]) for name in names} - {()})


def _traces(curves: Mapping[str, Curve]) -> list[Figure]:
    """Return a line for each split or, of several tasks and slices, for each of them and split."""
    parts = list(dict.fromkeys(n.partition("/")[2].partition("/")[2] for n in curves))
    splits = [s for s in SPLITS if any(n.startswith(f"{s}/") for n in curves)]
    if parts == [""]:
        return [
            trace_of_split(n.partition("/")[0], *curves[n]) for s in splits for n in _of(s, curves)
        ]
    traces: list[Figure] = []
    shown: set[str] = set()
    parts = sorted(parts, key=bool)[: len(COLOURS)]
    for colour, part in zip(COLOURS, parts):
        for split in splits:
            for name in _of(split, curves):
                if name.partition("/")[2].partition("/")[2] == part:
                    trace = trace_of_split(split, *curves[name])
                    label = (part or "all").replace("<", "&lt;")
                    trace["name"] = trace["legendgroup"] = label
                    trace["line"] = {"color": colour, "width": 2, **_DASHES.get(split, {})}
                    trace["marker"] = {**trace["marker"], "color": colour}
                    trace["showlegend"] = label not in shown
                    trace["hovertemplate"] = (
                        f"%{{y:.5g}} at %{{x:,}}<extra>{label}, {split}</extra>"
                    )
                    shown.add(label)
                    traces.append(trace)
    return traces


def _of(split: str, curves: Mapping[str, Curve]) -> list[str]:
    return [name for name in curves if name.startswith(f"{split}/")]


def _by_scale(name: str, curves: Mapping[str, Curve]) -> dict[str, Mapping[str, Curve]]:
    """Return heading -> curves, with separate train curves if one axis would flatten others."""
    train = {n: c for n, c in curves.items() if n.startswith("train/")}
    others = {n: c for n, c in curves.items() if n not in train}
    least, most = (_median_size(train), _median_size(others))
    if min(least, most) <= 0 or 1 / SCALES_APART < least / most < SCALES_APART:
        return {name: curves}
    return {name: others, f"{name} of the train rows": train}


def _median_size(curves: Mapping[str, Curve]) -> float:
    sizes = [abs(y) for _, ys in curves.values() for y in ys if math.isfinite(y)]
    return statistics.median(sizes) if sizes else 0.0


def _order(name: str) -> tuple[int, str]:
    first = ("loss", "auc", "log_loss", "normalized_entropy", "calibration")
    return (first.index(name), "") if name in first else (len(first), name)


def lr_figure(curves: Mapping[str, Curve]) -> Figure | None:
    """Return the learning rates of dense part and tables; None if none was logged twice."""
    logs = {n.partition("/lr/")[2]: c for n, c in curves.items() if "/lr/" in n}
    if not any(len(steps) > 1 for steps, _ in logs.values()):
        return None
    traces = [
        {**trace_of_split("train", *curve), "name": name, "line": {"color": colour, "width": 2}}
        for (name, curve), colour in zip(logs.items(), COLOURS)
    ]
    figure = over_updates(traces, log_y=_are_far_apart(traces))
    most = max((y for trace in traces for y in _drawn(trace)), default=0.0)
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
    figure = over_updates([{**trace_of_split("train", xs, ys), "name": "examples/s"}])
    figure["layout"]["yaxis"]["rangemode"] = "tozero"
    return figure


def trace_of_split(split: str, xs: Sequence[float], ys: Sequence[float]) -> Figure:
    """Return a line in the colour of a split; a single value is a point."""
    colour = _SPLIT_COLOURS.get(split, COLOURS[2])
    alone = len(xs) == 1
    return scatter(
        "markers" if alone else "lines+markers" if split == "validation" else "lines",
        to_json_numbers(xs),
        ys,
        name=split,
        line={"color": colour, "width": 2},
        marker={"color": colour, "size": 10 if alone else 5},
        hovertemplate="%{y:.5g} at %{x:,}<extra>" + split + "</extra>",
        showlegend=True,
    )


def over_updates(traces: list[Figure], *, best: int | None = None, log_y: bool = False) -> Figure:
    """Return a figure of traces over the updates, with a line at the best one."""
    line = {"color": "#94a3b8", "dash": "dot", "width": 1}
    at_best = {"type": "line", "x0": best, "x1": best, "y0": 0, "y1": 1, "yref": "paper"}
    return make_figure(
        traces,
        xaxis={"title": {"text": "updates", "standoff": 4}},
        yaxis={"type": "log", "dtick": 1} if log_y else {},
        height=_HEIGHT,
        margin=SMALL_MARGIN,
        legend=LEGEND_ABOVE,
        **({} if best is None else {"shapes": [{**at_best, "line": line}]}),
    )


def _are_far_apart(traces: Sequence[Figure]) -> bool:
    """Whether a linear axis would flatten the lower rate, and no rate comes near 0."""
    rates = [ys for trace in traces if (ys := _drawn(trace))]
    means = [sum(ys) / len(ys) for ys in rates]
    steady = all(min(ys) > 0.1 * max(ys) for ys in rates)
    return steady and max(means, default=0.0) > 8 * min(means, default=0.0) > 0


def _drawn(trace: Figure) -> list[float]:
    """Return the values of a trace without the gaps of NaN and infinity."""
    return [y for y in trace["y"] if y is not None]


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
    figure = over_updates(traces, log_y=max(lasts) > _LINES_APART * min(lasts) > 0)
    figure["layout"] |= {"height": 400, "legend": _LEGEND_BELOW}
    return figure


def _last(curve: Curve) -> float:
    return next((y for y in reversed(curve[1]) if math.isfinite(y)), 0.0)
