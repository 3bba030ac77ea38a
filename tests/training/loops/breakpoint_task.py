"""A step of one's own, for loop=debug: two batches an update, a `breakpoint()` in each, and a look
at who else is at work in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from runner.batch import Batch, Prediction
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised


class Pairs:
    """An update from two batches: the mean of their losses. Says what it finds."""

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        one, other = next(batches), next(batches)
        threads = sorted(t.name for t in threading.enumerate())
        compiled = isinstance(ctx.model.dense, torch._dynamo.eval_frame.OptimizeContext)
        print(f"threads {threads} compiled {compiled}")
        breakpoint()
        first = Supervised().train_step(ctx, iter([one]))
        second = Supervised().train_step(ctx, iter([other]))
        return StepOutput(
            (*first.predictions, *second.predictions),
            (*first.losses, *second.losses),
            torch.cat((first.rows_B, second.rows_B)),
            second.cursor,
            first.applied and second.applied,
        )

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return Supervised().eval_step(ctx, batch)


def at_breakpoint() -> None:
    """Named by PYTHONBREAKPOINT: what a debugger would see where the code has stopped."""
    frame = sys._getframe(1)
    print(f"stopped in {frame.f_code.co_name}, rows {frame.f_locals['one'].size}")
