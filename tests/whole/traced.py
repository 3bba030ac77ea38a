"""A task that writes down which examples each update learnt from, and dies where a test says.

Named by `task._target_=tests.whole.traced.Traced` with `--allow tests`.
Environment: TRACE_FILE; TRACE_KILL = `point:count`, with point one of
step, forward, eval, fsync, rename, manifest: SIGKILL at the count-th of them in this process, or
another signal: its number in TRACE_SIGNAL. With TRACE_SIGNAL = memory, the process
asks for more memory than it may have.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.batch import Batch, Prediction
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised

_counts: Counter[str] = Counter()


def reached(point: str) -> None:
    _counts[point] += 1
    if os.environ.get("TRACE_KILL") == f"{point}:{_counts[point]}":
        if (what := os.environ.get("TRACE_SIGNAL")) == "memory":
            exhaust_memory()
        os.kill(os.getpid(), int(what or signal.SIGKILL))


def exhaust_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    torch.ones(1 << 31)


def _wrap(name: str) -> None:
    """Counts calls of an os function, from any thread, before they are made."""
    real = getattr(os, name)

    def counted(*args, **kwargs):
        reached(name)
        return real(*args, **kwargs)

    setattr(os, name, counted)


@dataclass
class Traced:
    """Supervised, with a line a step in TRACE_FILE: the cursor and a hash of the example ids."""

    def __post_init__(self) -> None:
        self.inner = Supervised()
        for name in ("fsync", "rename", "replace"):
            _wrap(name)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        reached("step")
        output = self.inner.train_step(ctx, self._watched(batches))
        rows = hashlib.sha256(output.rows_B.cpu().numpy().tobytes()).hexdigest()
        line = {"cursor": [output.cursor.epoch, output.cursor.offset], "rows": rows}
        with open(os.environ["TRACE_FILE"], "a") as file:
            file.write(json.dumps(line) + "\n")
        return output

    def _watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            reached("batch")
            yield batch

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        reached("eval")
        return self.inner.eval_step(ctx, batch)
