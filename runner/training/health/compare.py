"""Puts the yardstick and the findings into the result of a run."""

from __future__ import annotations

import math

from runner.rundir.json_files import read_jsonl
from runner.rundir.readers import numeric_values
from runner.training.health.verdict import explain_below, find_overfitting
from runner.training.health.yardstick import measure_yardstick
from runner.training.job import Job, Result
from runner.training.state import TrainState


def compare_with_yardstick(job: Job, state: TrainState, result: Result) -> None:
    """Add `yardstick` and `findings` to the notes of a result. Nothing else changes.

    It works on rank 0, and no other rank waits for it but at the end of the run. A yardstick that
    fails is a warning: the run has its result.

    Args:
        job: that trained.
        state: its last one.
        result: of the run.
    """
    if not job.trainer.yardstick or job.run is None or not job.context.ranks.is_main:
        return
    splits = [s for s in ("validation", "test") if s in job.dataset.num_rows]
    splits = [s for s in splits if f"{s}/auc" in result.metrics]
    try:
        measured = measure_yardstick(job, splits)
    except (ValueError, ArithmeticError, MemoryError, KeyError) as error:
        job.view.warn(f"no yardstick (trainer.yardstick): {type(error).__name__}: {error}")
        return
    if not measured:
        return
    rows = (row for row in read_jsonl(job.run.metrics.path) if row.get("split") == "validation")
    last_validation = numeric_values(next(reversed(list(rows)), {}))
    findings = [*measured.pop("findings"), *find_overfitting(job, state, last_validation)]
    numbers = {k: v for k, v in measured["metrics"].items() if not math.isnan(v)}
    measured["metrics"] = numbers
    seconds = measured.pop("seconds")
    job.run.perf.append({"step": result.step, "yardstick_s": seconds})
    result.notes["yardstick"] = measured
    result.notes["findings"] = findings
    if below := explain_below(job, state, result.metrics, measured, findings):
        measured["below"] = below
