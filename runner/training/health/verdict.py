"""Says whether a run that has ended is worse than its yardstick, and what the cause may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.batch import TaskSpec
from runner.config.proposed_length import (
    FEW_UPDATES,
    NEXT_ITEM_LENGTH,
    NEXT_ITEM_ROWS,
    NEXT_ITEM_STEPS,
    propose_length,
)
from runner.metrics.names import get_metric
from runner.models.retrieval.next_item import NextItemModel
from runner.reporting.console.format import format_number
from runner.training.job import Job
from runner.training.state import TrainState
from runner.training.steps import rows_per_update
from runner.training.warm_start.warm_start import wants_warm_start

TOLERANCE = 0.002  # absolute for an AUC, recall or the like; relative for a regression's error
USELESS = 1.01  # normalized entropy, or unexplained share of the label's variance
WORSE_LOSS = 1.01  # ratio to the best validation loss from which a run overfits
_ERRORS = ("mse", "mae", "rmse")
# Metrics of a regression in the order of preference of the verdict: for binary labels, and for
# numbers. Calibration is not among them, since it is fitted to the validation rows.
MEASURED = ("auc", "log_loss", "pr_auc", "normalized_entropy", "rce", "accuracy")
MEASURED_OF_NUMBERS = ("mse", "mae", "rmse", "r2")
MEASURED_OF_LOGS = ("mae", "mse", "rmse", "r2")  # a few rows dominate their squared errors
_USUAL = ("auc", "log_loss", *MEASURED_OF_NUMBERS)  # others are shown if a run has none of these
IDS_FINDING = "numbers that predict better as ids"


def name_regression(tasks: Sequence[TaskSpec]) -> str:
    """Return the name of the yardstick for labels."""
    if any(task.kind == "binary" for task in tasks):
        return "logistic regression"
    return "Tweedie regression" if all(task.link for task in tasks) else "linear regression"


def find_overfitting(
    job: Job, state: TrainState, last_validation: Mapping[str, float]
) -> Iterator[str]:
    """Yield a finding if the validation loss has risen since its best while the train loss fell.

    And one if the start stayed the best, so that the result is that of a regression or a source.
    """
    best = state.best
    if best is None or best.step >= state.step:
        return
    if best.step == 0 and job.checkpoint.init_linear:
        scale = getattr(job.context.model, "pair_scale", None)
        factors = " and its factors" if scale is not None and bool((scale != 1).any()) else ""
        yield (
            "the linear start was best on validation: training the network did not improve it, and "
            f"the best weights are those of the regression{factors}"
        )
    elif best.step == 0 and wants_warm_start(job.checkpoint):
        yield (
            "the weights of the source were best on validation: training did not improve them, and "
            "the best weights are those that the run started from; rows of validation from which "
            "the source has learnt make it look better than it is"
        )
    loss, now, train = (
        metrics.get("log_loss", metrics.get("loss", float("nan")))
        for metrics in (best.metrics, last_validation, state.train_metrics)
    )
    of_places = isinstance(job.context.model, NextItemModel)  # its train loss is a sum over places
    if now > WORSE_LOSS * loss and (of_places or train < now):
        epoch = best.examples / max(job.dataset.num_rows.get("train", 1), 1)
        place = f"after epoch {epoch:.1f} (step {best.step:,})" if best.step else "before step 1"
        before, after = format_number(loss), format_number(now)
        if of_places:
            yield (
                f"overfitting: the model was best on validation {place}; since then the loss there "
                f"rose from {before} to {after}"
            )
        else:
            yield (
                f"overfitting: the model was best on validation {place}; since then the validation "
                f"loss rose from {before} to {after}, while that of the train rows is "
                f"{format_number(train)}"
            )


def find_useless(metrics: Mapping[str, float]) -> Iterator[str]:
    """Yield a finding if a constant prediction has less loss on validation or test rows.

    Args:
        metrics: of the result, `split/metric[/task]`.
    """
    useless = [
        f"{key} {value:.4f}"
        for key, value in metrics.items()
        if key.split("/")[0] in ("validation", "test")
        if (key.split("/")[1] == "normalized_entropy" and value > USELESS)
        or (key.split("/")[1] == "r2" and value < 1 - USELESS)
    ]
    if useless:
        has_learnt = (
            metrics.get("train/normalized_entropy", 0) < 1 and metrics.get("train/r2", 1) > 0
        )
        why = (
            "; what was learnt from the train rows does not hold there. If rows are split by time, "
            "old ones may mislead: try newer ones alone"
        )
        yield (
            f"worse than a constant: {', '.join(useless)}; predicting the mean label of these rows "
            f"for each of them has a lower loss{why if has_learnt else ''}"
        )


def explain_below(
    job: Job,
    state: TrainState,
    metrics: Mapping[str, float],
    yardstick: Mapping[str, Any],
    findings: list[str],
) -> str | None:
    """Return a sentence if a metric is worse than the yardstick's, with possible causes, or None.

    The test split is looked at first, then the validation split. The metric is the AUC; where
    that is undefined, the AUC of the task that is furthest behind, or else the first metric of the
    yardstick that is a number for both.

    Args:
        metrics: of the result, `split/metric`.
        yardstick: as `measure_yardstick` returns it.
    """
    for split in ("test", "validation"):
        reference = {k: v for k, v in yardstick["metrics"].items() if k.startswith(f"{split}/")}
        behind = {
            key: (value - metrics[key]) * (-1 if _is_loss(key) else 1) / _scale(key, value)
            for key, value in reference.items()
            if not math.isnan(metrics.get(key, math.nan))
        }
        if not behind:
            continue
        aucs = [key for key in behind if key.startswith(f"{split}/auc/")]
        key = max(aucs, key=behind.__getitem__, default=next(iter(behind)))
        key = f"{split}/auc" if f"{split}/auc" in behind else key
        if not behind[key] > TOLERANCE:
            continue
        head = (
            f"{key} {_format(key, metrics[key])} is {'above' if _is_loss(key) else 'below'} "
            f"that of {yardstick['name']} on the same rows, {_format(key, reference[key])}"
        )
        return "; ".join([head, *_causes(job, state, findings)])
    return None


def select_shown(measured: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the few metrics of a regression that are shown next to a run's.

    Args:
        measured: of the regression, `split/metric[/task]`.
    """
    for names in (_USUAL, MEASURED):
        shown = {key: value for key, value in measured.items() if key.split("/")[1] in names}
        if shown.keys() & metrics.keys():
            return shown
    return {}


def _is_loss(key: str) -> bool:
    return get_metric(key.split("/")[1]).direction == "min"


def _format(key: str, value: float) -> str:
    return f"{value:.5g}" if key.split("/")[1] in _ERRORS else f"{value:.4f}"


def _scale(key: str, value: float) -> float:
    """Return the divisor of a difference: errors have the label's unit, rce is in percent."""
    name = key.split("/")[1]
    return value if name in _ERRORS and value > 0 else 100.0 if name == "rce" else 1.0


def _longer_run(job: Job, train_rows: int) -> str:
    """Return the overrides that set the usual length of a run; empty if it is as long already."""
    update_rows, trainer = rows_per_update(job), job.trainer
    if isinstance(job.context.model, NextItemModel):
        is_met = update_rows <= NEXT_ITEM_ROWS and (trainer.max_steps or 0) >= NEXT_ITEM_STEPS
        return "" if is_met else NEXT_ITEM_LENGTH
    proposed = propose_length(train_rows)
    is_met = proposed.is_met(update_rows, trainer.max_epochs)
    return "" if is_met else " ".join(proposed.overrides(update_rows // trainer.batch_size))


def _causes(job: Job, state: TrainState, findings: list[str]) -> Iterator[str]:
    rows = job.dataset.num_rows["train"]
    length = _longer_run(job, rows)
    begins_anew = job.checkpoint.init_from is None  # a warm start needs few updates
    if state.step < FEW_UPDATES and begins_anew:
        updates = "update" if state.step == 1 else "updates"
        yield f"only {state.step:,} {updates}" + (f": try {length}" if length else "")
    elif state.best is not None and state.best.step == state.step and state.stopped is None:
        more = f"more epochs ({length})" if length else "more epochs"
        yield f"it was still improving at the end: try {more}, or higher learning rates"
    for finding in findings:
        if finding.startswith((IDS_FINDING, "overfitting")):
            yield finding
    best = state.best
    if best is not None and 0 < best.step < state.step and best.examples <= rows / 2:
        yield "it was best within half an epoch: try lower learning rates (optimizer.sparse.lr)"
    elif best is not None and best.step == job.trainer.eval_every and best.step < state.step:
        yield "it was best when first evaluated: try a smaller trainer.eval_every"
    can_start_linear = job.context.growing is None and not job.checkpoint.init_linear
    if can_start_linear and begins_anew and hasattr(job.context.model, "deep"):
        yield "model=wide_and_deep checkpoint.init_linear=true starts from that regression"
