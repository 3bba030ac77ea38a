"""Decides after an evaluation whether to stop early, and what to change on a plateau."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.config.early_stopping import (
    PATIENCE_RULES,
    BatchOnPlateau,
    EarlyStop,
    LrOnPlateau,
    PatienceRule,
    PatienceState,
    PlateauRule,
    is_enabled,
    is_exhausted,
    next_batch_multiplier,
    next_lr_scale,
    reaches_threshold,
    record_evaluation,
    reset,
    resolve_metric,
)
from runner.training.job import Job
from runner.training.state import TrainState
from runner.training.steps import current_total_steps, is_finished, rows_per_update


def apply_plateau_rules(
    job: Job, state: TrainState, results: Mapping[str, Mapping[str, float]]
) -> None:
    """Apply every rule that is on to one evaluation of all its splits, in place.

    The result is the same on all ranks, since they have the same metrics. A run that is at its end
    anyway changes nothing more.
    """
    for name in PATIENCE_RULES:
        rule: PatienceRule = getattr(job.trainer, name)
        if not is_enabled(vars(rule)):
            continue
        metric, direction = resolve_metric(rule, job.checkpoint.monitor)
        split, _, metric_name = metric.partition("/")
        value = results[split][metric_name]
        patience = record_evaluation(
            state.waits.get(name, PatienceState()),
            value,
            direction=direction,
            min_delta=rule.min_delta,
        )
        state.waits[name] = patience
        if is_finished(job, state):
            continue
        reason = _describe_plateau(metric, patience.since, rule.min_delta)
        reason += f", since {metric_name} is undefined" * math.isnan(value)
        if isinstance(rule, EarlyStop):
            if reaches_threshold(value, rule.threshold, direction):
                _stop(job, state, f"{metric} has reached {rule.threshold:g}: {value:.5f}")
            elif is_exhausted(patience, rule.patience):
                _stop(job, state, reason)
        elif isinstance(rule, PlateauRule) and is_exhausted(
            patience, rule.patience, rule.max_times
        ):
            change = _lower_rates if isinstance(rule, LrOnPlateau) else _enlarge_update
            if change(job, state, rule, reason):  # type: ignore[arg-type]
                state.waits[name] = reset(patience)


def _describe_plateau(metric: str, since: int, min_delta: float) -> str:
    by = f" by more than {min_delta:g}" if min_delta else ""
    return f"{metric} has not improved{by} in {since} evaluation{'s' * (since != 1)}"


def _stop(job: Job, state: TrainState, reason: str) -> None:
    state.stopped = f"early_stop: {reason}"
    job.view.note(f"step {state.step:,}: stopping early: {reason}")


def _lower_rates(job: Job, state: TrainState, rule: LrOnPlateau, reason: str) -> bool:
    """Return whether there was a lower rate to go to."""
    scale = next_lr_scale(state.lr_scale, rule)
    if scale == state.lr_scale:
        return False
    job.view.note(
        f"step {state.step:,}: {reason}: learning rates are {scale:g} of the schedule's from here "
        f"on (were {state.lr_scale:g})"
    )
    state.lr_scale = scale
    return True


def _enlarge_update(job: Job, state: TrainState, rule: BatchOnPlateau, reason: str) -> bool:
    """Return whether there was a larger update to go to."""
    multiplier = next_batch_multiplier(state.batch_multiplier, rule, rows_per_update(job))
    if multiplier == state.batch_multiplier:
        return False
    old_rows = rows_per_update(job, state.batch_multiplier)
    old_steps = current_total_steps(job, state)
    state.batch_multiplier = multiplier
    rows, steps = rows_per_update(job, multiplier), current_total_steps(job, state)
    length = f"{steps:,} updates"
    if steps != old_steps:
        length += f" in all (were {old_steps:,})"
    job.view.note(
        f"step {state.step:,}: {reason}: {rows:,} rows an update from here on "
        f"(were {old_rows:,}); {length}"
    )
    job.view.set_total_steps(steps)
    return True
