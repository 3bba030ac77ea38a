"""A custom step for loop=debug: it takes two batches, stops at a `breakpoint()` and prints which
threads there are and whether the model is compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from runner.batch import Batch, Prediction
from runner.training.update.compilation import CompiledDense
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised


class Pairs:
    """Makes an update from two batches, of the mean of their losses."""

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        one, other = next(batches), next(batches)
        threads = sorted(t.name for t in threading.enumerate())
        compiled = isinstance(ctx.model.dense, CompiledDense)
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
    """Print what a debugger would see at the breakpoint; PYTHONBREAKPOINT names this function."""
    frame = sys._getframe(1)
    print(f"stopped in {frame.f_code.co_name}, rows {frame.f_locals['one'].size}")
