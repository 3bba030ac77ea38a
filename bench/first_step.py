"""A task that prints when the first update began and ended, and exits. Used by `bench.startup`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from runner.batch import Batch
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised


class FirstStep(Supervised):
    """Prints the times of day, in seconds, at which the first update began and ended."""

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        began_s = time.time()
        super().train_step(ctx, batches)
        print(f"first step {began_s!r} {time.time()!r}", flush=True)
        sys.stderr.flush()
        os._exit(0)  # what a run does at its end is not what is measured
