"""Resets, on a resume, the best evaluation and patience if the metric or the weights changed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from runner.config.early_stopping import (
    PATIENCE_RULES,
    EarlyStop,
    PatienceState,
    is_better,
    is_enabled,
    resolve_metric,
)
from runner.rundir.checkpoint import Checkpoint, saved_steps
from runner.rundir.checkpoint.folder import peek_checkpoint
from runner.rundir.identity import signed_settings_at
from runner.rundir.json_files import iterate_jsonl
from runner.training.job import Job
from runner.training.state import EMA_PREFIX, BestEvaluation, TrainState

_MONITOR = "checkpoint.monitor"


def follow_changed_metrics(job: Job, saved: Checkpoint, state: TrainState) -> None:
    """Choose the best evaluation again and reset patience if a metric or direction has changed.

    Values of two metrics cannot be compared. Everything else stays as in the checkpoint.
    Collective.
    """
    if job.run is None or saved.values["signature"] == job.run.signature:
        return
    before = signed_settings_at(job.run.meta, saved.values["signature"])
    now = job.run.meta.get("identity") or {}
    old, new = _watched_metric(before, _MONITOR), _watched_metric(now, _MONITOR)
    if old != new:
        kept = saved_steps(job.run.dir / "checkpoints")
        found = _find_best(job.run.dir, kept, *new) if job.context.ranks.is_main else None
        had_best, state.best = state.best is not None, job.context.ranks.broadcast_object(found)
        text = f"{_MONITOR} is {' '.join(new)} now and was {' '.join(old)}: the best"
        if state.best is not None:
            best = state.best
            job.view.note(f"{text} kept checkpoint is step {best.step:,} ({best.value:.5f})")
        elif had_best:
            job.view.note(f"{text} is taken anew, since no kept checkpoint has this metric")
    for name in PATIENCE_RULES.keys() & state.waits.keys():
        key = f"trainer.{name}"
        old, new = _watched_metric(before, key), _watched_metric(now, key)
        if old == new:
            continue
        state.waits[name] = PatienceState(times=state.waits[name].times)
        if is_enabled(job.config["trainer"].get(name)):
            job.view.note(
                f"{key} waits for {' '.join(new)} now and waited for {' '.join(old)}: it counts "
                "its evaluations anew"
            )


def replace_best_without_averages(job: Job, state: TrainState) -> None:
    """Choose the best again if evaluations use averages that its checkpoint lacks.

    That is so if a resume is the first to ask for averages. Collective.
    """
    ema = job.context.ema
    if job.run is None or state.best is None:
        return
    if ema is None or not ema.use_in_evaluation or not ema.averages:
        return
    before: BestEvaluation = state.best
    best: BestEvaluation | None = before
    if job.context.ranks.is_main and _lacks_averages(job.run.dir, before.step):
        saved = saved_steps(job.run.dir / "checkpoints")
        averaged = [step for step in saved if not _lacks_averages(job.run.dir, step)]
        monitor = job.checkpoint.monitor
        best = _find_best(job.run.dir, averaged, monitor.metric, monitor.direction)
    state.best = job.context.ranks.broadcast_object(best)
    if state.best is None or state.best.step != before.step:
        outcome = "the best is taken anew"
        if state.best is not None:
            outcome = f"the best kept checkpoint with one is step {state.best.step:,}"
        job.view.note(
            f"trainer.ema.evaluate=true: the checkpoint of the best evaluation, step "
            f"{before.step:,}, holds no moving average: {outcome}"
        )


def _lacks_averages(run_dir: Path, step: int) -> bool:
    summary = peek_checkpoint(run_dir / "checkpoints" / f"step-{step}")
    return summary is not None and not any(n.startswith(EMA_PREFIX) for n in summary.tensor_names)


def _watched_metric(settings: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return metric and direction of a rule or of the monitor, from signed settings."""
    rule, monitor = (
        EarlyStop(metric=settings.get(f"{k}.metric"), direction=settings.get(f"{k}.direction"))
        for k in (key, _MONITOR)
    )
    return resolve_metric(rule, monitor)


def _find_best(
    run_dir: Path, saved: Collection[int], metric: str, direction: str
) -> BestEvaluation | None:
    """Return the best evaluation whose checkpoint is kept: only that one can be tested."""
    best: BestEvaluation | None = None
    for row in iterate_jsonl(run_dir / "metrics.jsonl"):
        if row.pop("split", None) != "validation" or row.get("step") not in saved:
            continue
        step, examples = row.pop("step"), row.pop("examples")
        metrics = {name: float(value) for name, value in row.items()}  # NaN is written as text
        value = metrics.get(metric.removeprefix("validation/"), math.nan)
        if is_better(value, None if best is None else best.value, direction):
            best = BestEvaluation(step, examples, value, metrics)
    return best
