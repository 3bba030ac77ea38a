"""A task whose numeric features are NaN in some updates, or its losses in evaluations.

Named by `task._target_=tests.whole.poisoned.Poisoned` with `--allow tests`. Environment:
POISON_UPDATES = `5-30`, counted from 1 in this process; POISON_EVALUATION: `all` for NaN losses,
`scores` for NaN logits with finite losses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from runner.batch import Batch, Prediction
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised


def _poison(batch: Batch) -> Batch:
    return replace(batch, dense_BD=batch.dense_BD * float("nan"))


@dataclass
class Poisoned:
    def __post_init__(self) -> None:
        self.inner, self.updates = Supervised(), 0
        first, _, last = os.environ.get("POISON_UPDATES", "0-0").partition("-")
        self.poisoned = range(int(first), int(last) + 1)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        self.updates += 1
        return self.inner.train_step(ctx, self._changed(batches))

    def _changed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield _poison(batch) if self.updates in self.poisoned else batch

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        prediction, losses = self.inner.eval_step(ctx, batch)
        if os.environ.get("POISON_EVALUATION") == "all":
            losses = {name: loss * float("nan") for name, loss in losses.items()}
        if os.environ.get("POISON_EVALUATION") == "scores":
            prediction = replace(prediction, logits_BT=prediction.logits_BT * float("nan"))
        return prediction, losses


class Removing(Poisoned):
    """Removes the file REMOVE_FILE before its 20th update."""

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        if self.updates == 19:
            Path(os.environ["REMOVE_FILE"]).unlink()
        return super().train_step(ctx, batches)
