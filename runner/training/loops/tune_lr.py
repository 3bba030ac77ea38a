"""loop=tune_lr: a range test. All rates grow by one factor from update to update, and the loss
tells where learning is fastest and where it breaks (Smith, arXiv:1506.01186, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.reporting.console.format import TextTable, format_number
from runner.reporting.console.sparkline import bar
from runner.training.debugging.losses import mean_losses
from runner.training.job import Job, LearningRates, Result
from runner.training.loops.tuner import tune, with_lr_factor, write_plot
from runner.training.state import TrainState
from runner.training.steps import steps

MAX_TABLE_ROWS = 24  # rows of the table
SKIPPED_FRACTION = 0.1  # of the points, at the start, where the smoothed loss has not settled


@dataclass(frozen=True)
class RangeTestPoint:
    """An update: its factor of the configured rates, its loss, and the smoothed loss."""

    factor: float
    loss: float
    smoothed: float


def tune_lr(job: Job) -> Result:
    """Suggests a factor for the learning rates of both sides. Collective."""
    return tune(job, _search, lambda job, found: with_lr_factor(job, found.get("factor", 1.0)))


def _search(job: Job) -> dict[str, Any]:
    settings = job.loop_settings
    points, end = range_test(
        job,
        low=settings["low"],
        high=settings["high"],
        updates=settings["updates"],
        smoothing=settings["smoothing"],
        diverged=settings["diverged"],
    )
    chosen = suggest_point(points)
    _tell(job, points, chosen, end)
    if chosen is None:
        job.view.warn(
            "tune_lr: the loss fell nowhere, so no rate is suggested; another loop.low and "
            "loop.high, or more loop.updates?"
        )
        return {}
    rates = {f"{name}_lr": full * chosen.factor for name, full in job.learning_rates.base.items()}
    return {"factor": chosen.factor, **rates}


def range_test(
    job: Job, *, low: float, high: float, updates: int, smoothing: float, diverged: float
) -> tuple[list[RangeTestPoint], str]:
    """Collective. The points up to the last update or the divergence, and why it ended."""
    ratio = high / low

    def factor(k: int) -> float:
        return low * ratio ** ((k - 1) / max(1, updates - 1))

    trial = replace(
        job,
        learning_rates=LearningRates(job.learning_rates.base, factor),
        trainer=replace(job.trainer, max_steps=updates, max_epochs=None),
    )
    points: list[RangeTestPoint] = []
    average, least = 0.0, math.inf
    state = TrainState()
    for output in steps(trial, state):
        losses = job.context.ranks.all_gather_object(sum(mean_losses(output).values()))  # sync
        loss = sum(losses) / len(losses)
        if not (math.isfinite(loss) and output.applied):
            return points, f"not finite at {factor(state.step):.3g} times the rates"
        average = smoothing * average + (1 - smoothing) * loss
        smoothed = average / (1 - smoothing**state.step)  # as if it had begun at the first loss
        points.append(RangeTestPoint(factor(state.step), loss, smoothed))
        job.view.step(state.step)
        if smoothed > diverged * least:
            return points, f"diverged at {factor(state.step):.3g} times the rates"
        least = min(least, smoothed)
    return points, f"{updates} updates"


def suggest_point(points: Sequence[RangeTestPoint]) -> RangeTestPoint | None:
    """Where the smoothed loss falls steepest, by the logarithm of the rate, before its least."""
    if len(points) < 3:
        return None
    smoothed = np.array([p.smoothed for p in points])
    slope = np.gradient(smoothed, np.log([p.factor for p in points]))
    first, last = int(SKIPPED_FRACTION * len(points)), int(smoothed.argmin())
    if last <= first:
        return None
    at = first + int(slope[first : last + 1].argmin())
    return points[at] if slope[at] < 0 else None


def _tell(
    job: Job, points: Sequence[RangeTestPoint], chosen: RangeTestPoint | None, end: str
) -> None:
    """The curve as a table with bars, and as a page."""
    every = max(1, -(-len(points) // MAX_TABLE_ROWS))
    shown = [p for n, p in enumerate(points) if n % every == 0 or p is chosen]
    names = list(job.learning_rates.base)
    rows = [
        [
            f"{p.factor:.3g}",
            *(f"{job.learning_rates.base[name] * p.factor:.3g}" for name in names),
            format_number(p.smoothed),
        ]
        for p in shown
    ]
    least = min((p.smoothed for p in points), default=0.0)
    # a loss that has diverged would leave the others without a visible difference
    most = min(
        max((p.smoothed for p in shown), default=0.0), 2 * points[0].smoothed if points else 0
    )
    lines = TextTable(["factor", *(f"{name} lr" for name in names), "loss"], rows).lines()
    drawn = ["", *(bar(min(p.smoothed, most) - 0.9 * least, most - 0.9 * least) for p in shown)]
    marks = ["", *("  <- suggested" if p is chosen else "" for p in shown)]
    for line, picture, mark in zip(lines, drawn, marks):
        job.view.note(f"{line}  {picture}{mark}".rstrip())
    if chosen is not None:
        keys = ", ".join(f"{n} {job.learning_rates.base[n] * chosen.factor:.3g}" for n in names)
        end = f"{end}; suggested learning rates: {keys}"
    job.view.note(f"ended by: {end}")
    write_plot(
        job,
        "tune_lr",
        lambda go: go.Figure(
            [
                go.Scatter(x=[p.factor for p in points], y=[p.loss for p in points], name="loss"),
                go.Scatter(
                    x=[p.factor for p in points], y=[p.smoothed for p in points], name="smoothed"
                ),
            ],
            {
                "title": "range test" + (f": suggested {chosen.factor:.3g}" if chosen else ""),
                "xaxis": {"title": "times the configured rates", "type": "log"},
                "yaxis": {"title": "loss", "range": [0.8 * least, most + 0.2 * least]},
            },
        ),
    )
