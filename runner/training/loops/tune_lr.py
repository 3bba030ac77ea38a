"""loop=tune_lr: a range test, which finds a factor for the learning rates.

All rates grow by one factor from update to update; the loss shows where learning is fastest and
where it breaks (Smith, arXiv:1506.01186, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.parts import loop_option
from runner.reporting.console.format import format_number
from runner.training.debugging.losses import mean_losses
from runner.training.job import Job, LearningRates, Result
from runner.training.loops.tuner import (
    TrialRow,
    TunedValues,
    TuningReport,
    show_report,
    tune,
    with_lr_factor,
)
from runner.training.state import TrainState
from runner.training.steps import steps

MAX_TABLE_ROWS = 24
SKIPPED_FRACTION = 0.1  # of the points, at the start, where the smoothed loss has not settled


@dataclass(frozen=True)
class RangeTestPoint:
    """An update: its factor of the configured rates, its loss, and the smoothed loss."""

    factor: float
    loss: float
    smoothed: float


@loop_option
def tune_lr(job: Job) -> Result:
    """Suggest a factor for the learning rates of both sides. Collective."""
    return tune(job, _suggest_rates, lambda job, tuned: with_lr_factor(job, tuned.get("factor", 1)))


def _suggest_rates(job: Job) -> TunedValues:
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
    show_report(job, _make_report(job, points, chosen, end))
    if chosen is None:
        job.view.warn(
            "tune_lr: the loss never fell, so no rate is suggested; try another loop.low and "
            "loop.high, or more loop.updates"
        )
        return {}
    rates = {f"{name}_lr": full * chosen.factor for name, full in job.learning_rates.base.items()}
    return {"factor": chosen.factor, **rates}


def range_test(
    job: Job, *, low: float, high: float, updates: int, smoothing: float, diverged: float
) -> tuple[list[RangeTestPoint], str]:
    """Make updates with growing rates until the last one or until the loss diverges.

    Collective.

    Returns:
        The points, and why the test ended.
    """
    ratio = high / low

    def factor(k: int) -> float:
        return float(low * ratio ** ((k - 1) / max(1, updates - 1)))

    trial_job = replace(
        job,
        learning_rates=LearningRates(job.learning_rates.base, factor),
        trainer=replace(job.trainer, max_steps=updates, max_epochs=None),
    )
    points: list[RangeTestPoint] = []
    average, least = 0.0, math.inf
    state = TrainState()
    for output in steps(trial_job, state):
        weight = float(sum(p.weights_B.sum() for p in output.predictions))  # sync
        mean = sum(mean_losses(output).values())  # sync
        parts = job.context.ranks.all_gather_object((weight, mean))  # ranks have uneven rows
        loss = sum(w * x for w, x in parts) / max(sum(w for w, _ in parts), 1e-38)
        place = f"at {factor(state.step):.3g} times the configured rates"
        if not (math.isfinite(loss) and output.applied):
            return points, f"a loss that is not finite {place}"
        average = smoothing * average + (1 - smoothing) * loss
        smoothed = average / (1 - smoothing**state.step)  # corrects the bias of starting at 0
        points.append(RangeTestPoint(factor(state.step), loss, smoothed))
        job.view.step(state.step)
        if smoothed > diverged * least:
            return points, f"a loss that diverged {place}"
        least = min(least, smoothed)
    return points, f"{updates} updates"


def suggest_point(points: Sequence[RangeTestPoint]) -> RangeTestPoint | None:
    """Return the point before the least loss where the loss falls fastest.

    The slope is that of the smoothed loss over the logarithm of the rate.

    Returns:
        None if the loss falls nowhere.
    """
    if len(points) < 3:
        return None
    smoothed = np.array([p.smoothed for p in points])
    slope = np.gradient(smoothed, np.log([p.factor for p in points]))
    first, last = int(SKIPPED_FRACTION * len(points)), int(smoothed.argmin())
    if last <= first:
        return None
    at = first + int(slope[first : last + 1].argmin())
    return points[at] if slope[at] < 0 else None


def _make_report(
    job: Job, points: Sequence[RangeTestPoint], chosen: RangeTestPoint | None, end: str
) -> TuningReport:
    every = max(1, -(-len(points) // MAX_TABLE_ROWS))
    shown = [p for n, p in enumerate(points) if n % every == 0 or p is chosen]
    base = job.learning_rates.base
    least = min((p.smoothed for p in points), default=0.0)
    most = max((p.smoothed for p in shown), default=0.0)
    # beside a loss that has diverged, the others would show no difference
    most = min(most, 2 * points[0].smoothed if points else 0)
    floor = 0.9 * least
    rows = [
        TrialRow(
            cells=[
                f"{p.factor:.3g}",
                *(f"{rate * p.factor:.3g}" for rate in base.values()),
                format_number(p.smoothed),
            ],
            value=min(p.smoothed, most) - floor,
            mark="suggested" if p is chosen else "",
        )
        for p in shown
    ]
    if chosen is not None:
        rates = ", ".join(f"{name} {rate * chosen.factor:.3g}" for name, rate in base.items())
        end = f"{end}; suggested learning rates: {rates}"
    factors = [p.factor for p in points]
    return TuningReport(
        name="tune_lr",
        header=["factor", *(f"{name} lr" for name in base), "loss"],
        rows=rows,
        largest=most - floor,
        end=end,
        title="range test" + (f": suggested {chosen.factor:.3g}" if chosen else ""),
        x_title="times the configured rates",
        y_axis={"title": "loss", "range": [0.8 * least, most + 0.2 * least]},
        curves={
            "loss": (factors, [p.loss for p in points]),
            "smoothed": (factors, [p.smoothed for p in points]),
        },
    )
