"""What an evaluation decides: to stop early, and what changes on a plateau."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.early_stopping import (
    BatchOnPlateau,
    EarlyStop,
    LrOnPlateau,
    PatienceRule,
    PatienceState,
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


def apply_plateau_rules(job: Job, state: TrainState, metrics: Mapping[str, float]) -> None:
    """Feeds one evaluation to every rule that is on. In place; the same on all ranks, since they
    have the same metrics. A run that is at its end anyway changes nothing more."""
    trainer = job.trainer
    rules: dict[str, PatienceRule] = {
        "early_stop": trainer.early_stop,
        "lr_on_plateau": trainer.lr_on_plateau,
        "batch_on_plateau": trainer.batch_on_plateau,
    }
    for name, rule in rules.items():
        good_enough = rule.threshold if isinstance(rule, EarlyStop) else None
        if rule.patience is None and good_enough is None:
            continue
        metric, direction = resolve_metric(rule, job.checkpoint.monitor)
        value = metrics[metric.removeprefix("validation/")]
        wait = record_evaluation(
            state.waits.get(name, PatienceState()),
            value,
            direction=direction,
            min_delta=rule.min_delta,
        )
        state.waits[name] = wait
        if is_finished(job, state):
            continue
        why = _waited(metric, wait.since, rule.min_delta)
        if isinstance(rule, EarlyStop):
            if reaches_threshold(value, rule.threshold, direction):
                _stop(job, state, f"{metric} has reached {rule.threshold:g}: {value:.5f}")
            elif is_exhausted(wait, rule.patience):
                _stop(job, state, why)
        elif is_exhausted(wait, rule.patience, rule.max_times):
            change = _lower_rates if isinstance(rule, LrOnPlateau) else _enlarge_update
            if change(job, state, rule, why):  # type: ignore[arg-type]
                state.waits[name] = reset(wait)


def _waited(metric: str, since: int, min_delta: float) -> str:
    by = f" by more than {min_delta:g}" if min_delta else ""
    return f"{metric} has not improved{by} in {since} evaluation{'s' * (since != 1)}"


def _stop(job: Job, state: TrainState, why: str) -> None:
    state.stopped = f"early_stop: {why}"
    job.view.note(f"step {state.step:,}: stopping early: {why}")


def _lower_rates(job: Job, state: TrainState, rule: LrOnPlateau, why: str) -> bool:
    """Returns: whether there was a lower rate to go to."""
    scale = next_lr_scale(state.lr_scale, rule)
    if scale == state.lr_scale:
        return False
    job.view.note(
        f"step {state.step:,}: {why}: learning rates are {scale:g} of the schedule's from here on "
        f"(were {state.lr_scale:g})"
    )
    state.lr_scale = scale
    return True


def _enlarge_update(job: Job, state: TrainState, rule: BatchOnPlateau, why: str) -> bool:
    """Returns: whether there was a larger update to go to."""
    multiplier = next_batch_multiplier(state.batch_multiplier, rule, rows_per_update(job))
    if multiplier == state.batch_multiplier:
        return False
    rows, steps = rows_per_update(job, state.batch_multiplier), current_total_steps(job, state)
    state.batch_multiplier = multiplier
    now = current_total_steps(job, state)
    length = f"{now:,} updates in all (were {steps:,})" if now != steps else f"{now:,} updates"
    job.view.note(
        f"step {state.step:,}: {why}: {rows_per_update(job, multiplier):,} rows an update from here on "
        f"(were {rows:,}); {length}"
    )
    job.view.set_total_steps(now)
    return True
