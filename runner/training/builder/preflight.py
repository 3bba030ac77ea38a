"""Warns before a run starts of too few updates, and intervals never reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runner.config.early_stopping import PATIENCE_RULES
from runner.config.intervals import Interval
from runner.config.proposed_length import FEW_UPDATES, NEXT_ITEM_LENGTH, propose_length
from runner.config.settings import TrainerSettings
from runner.training.job import Cadence


@dataclass(frozen=True)
class RunLength:
    """The length of a run in updates, and of one of its epochs in updates and rows."""

    steps: int
    steps_per_epoch: int
    rows_per_epoch: int
    rows_per_update: int

    def count_intervals(self, interval: Interval | None, steps: int) -> int | None:
        """Return how often an interval has passed after `steps` updates; None if it is a time."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        if interval is None:
            return 0
        if interval.unit == "updates":
            return steps // interval.count
        if interval.unit == "epochs":
            return epochs // interval.count
        if interval.unit == "seconds":
            return None
        rows = epochs * self.rows_per_epoch + rest * self.rows_per_update
        return rows // interval.count


def preflight_warnings(
    cadence: Cadence,
    trainer: TrainerSettings,
    length: RunLength,
    *,
    is_next_item: bool = False,
    skips_events: bool = False,
    is_warm: bool = False,
    evaluates_start: bool = False,
) -> Iterator[str]:
    """Yield warnings of too few rows or updates, and of intervals and patience never reached.

    Args:
        is_next_item: whether the model predicts the next item of a history.
        skips_events: whether rows are windows of events, of which the model learns only one.
        is_warm: whether the run starts from the weights of another one, so that few updates do.
        evaluates_start: whether the weights at step 0 are evaluated, too.
    """
    if skips_events:
        yield (
            f"interactions.train_on=windows makes {length.rows_per_epoch:,} train rows, for models "
            "that learn at every place of a history, and this model learns only from the last "
            "item of each row; write `train_on: every` in the schema, which makes a row "
            "of each event"
        )
    if trainer.max_steps is None and length.steps < FEW_UPDATES and not is_warm:
        proposed = propose_length(length.rows_per_epoch)
        updates = "update" if length.steps_per_epoch == 1 else "updates"
        epochs = f" and {length.steps:,} in all" if length.steps > length.steps_per_epoch else ""
        words = " ".join(proposed.overrides(length.rows_per_update // trainer.batch_size or 1))
        words += "; the value auto for these settings chooses the same"
        advice = f"; try {NEXT_ITEM_LENGTH if is_next_item else words}"
        if not is_next_item and proposed.is_met(length.rows_per_update, trainer.max_epochs):
            advice = "; more rows would help, since no more updates are proposed for so few"
        if is_next_item or proposed.batch_size <= length.rows_per_update:
            yield (
                f"{length.rows_per_epoch:,} rows in batches of {length.rows_per_update:,} make "
                f"{length.steps_per_epoch:,} {updates} an epoch{epochs}: too few to learn{advice}"
            )
    for key, interval, instead in (
        ("trainer.log_every", cadence.log_every, "only the end is logged"),
        ("trainer.eval_every", cadence.eval_every, "only the end is evaluated"),
        ("checkpoint.save_every", cadence.save_every, "only the best and the last are saved"),
    ):
        if interval is not None and length.count_intervals(interval, length.steps) == 0:
            run = f"longer than the run ({length.steps:,} updates)"
            more = f"; {key}={max(1, length.steps // 4)} is short enough"
            yield f"{key}: {interval.text} is {run}: {instead}{more}"
    # the evaluation at the end does not count: a rule that acts then changes nothing
    evaluations = length.count_intervals(cadence.eval_every, length.steps - 1) or 0
    evaluations += evaluates_start
    for name in PATIENCE_RULES:
        patience = getattr(trainer, name).patience
        if patience is not None and patience >= evaluations:  # the first is always the best so far
            yield (
                f"trainer.{name}.patience={patience}: has no effect: there are {evaluations} "
                f"evaluations before the end (trainer.eval_every={trainer.eval_every}, "
                f"{length.steps:,} updates), and the first is the best so far; set a smaller "
                "patience or trainer.eval_every, or train longer"
            )
