"""A task that asks for more memory than there is if a batch has too many rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from runner.batch import Batch
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised


class Hungry(Supervised):
    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        output = super().train_step(ctx, iter([batch]))
        if batch.size > self.most_rows:
            torch.empty(1 << 50, dtype=torch.uint8)  # the allocator's own refusal
        return output
