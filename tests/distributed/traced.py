"""A task that writes the examples of every update into a file for each rank, and dies on request.

These variables of the environment control it:

TRACE_FILE: the files' common prefix.
TRACE_KILL: `rank:step` sends SIGKILL to that rank before its step-th update, as it counts them;
    `rank:count:point` does so at its count-th exchange with other ranks (point `collective`), or at
    its count-th fsync of a checkpoint (`checkpoint`).
TRACE_STOP: the same with SIGSTOP.
TRACE_PAUSE_S: seconds of sleep before every update on several ranks, and on one `TRACE_ALONE_S`,
    for faults that need time to happen.
TRACE_COUNTS: the prefix of a file for each rank with the number of times it reached each point.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runner.batch import Batch, Prediction
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised

_counts: Counter[str] = Counter()


def fail_if_asked(here: str) -> None:
    """Send this process the signal that the environment asks for at this point."""
    for name, number in (("TRACE_KILL", signal.SIGKILL), ("TRACE_STOP", signal.SIGSTOP)):
        if os.environ.get(name) == here:
            os.kill(os.getpid(), number)


def _count_calls(module: Any, name: str, point: str) -> None:
    """Count the calls of a function, from any thread, before they are made."""
    real = getattr(module, name)

    def counted(*args: Any, **more: Any) -> Any:
        _counts[point] += 1
        if counts := os.environ.get("TRACE_COUNTS"):
            Path(f"{counts}.{os.environ.get('RANK', 0)}").write_text(json.dumps(_counts))
        fail_if_asked(f"{os.environ.get('RANK', 0)}:{_counts[point]}:{point}")
        return real(*args, **more)

    setattr(module, name, counted)


@dataclass
class Traced:
    inner: Supervised = field(default_factory=Supervised)
    count: int = 0
    looks_up_once = True

    def __post_init__(self) -> None:
        for name in ("all_reduce", "all_gather", "all_gather_object", "all_to_all_single"):
            _count_calls(torch.distributed, name, "collective")
        _count_calls(os, "fsync", "checkpoint")

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        self.count += 1
        _counts["step"] = self.count
        fail_if_asked(f"{ctx.ranks.rank}:{self.count}")
        pause = "TRACE_PAUSE_S" if ctx.ranks.is_distributed else "TRACE_ALONE_S"
        time.sleep(float(os.environ.get(pause, 0)))
        output = self.inner.train_step(ctx, batches)
        line = {
            "cursor": [output.cursor.epoch, output.cursor.offset],
            "rows": [int(r) for r in output.rows_B if r >= 0],
        }
        with open(f"{os.environ['TRACE_FILE']}.{ctx.ranks.rank}", "a") as file:
            file.write(json.dumps(line) + "\n")
        return output

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return self.inner.eval_step(ctx, batch)


def examples(trace: Path, num_ranks: int) -> dict[tuple[int, int], list[int]]:
    """Return for each position the examples of the update before it, in the order of ranks.

    An update that was repeated after a kill must have had the same examples.
    """
    rows_by_rank: list[dict[tuple[int, int], list[int]]] = []
    for rank in range(num_ranks):
        seen: dict[tuple[int, int], list[int]] = {}
        for line in Path(f"{trace}.{rank}").read_text().splitlines():
            row = json.loads(line)
            at = tuple(row["cursor"])
            assert seen.setdefault(at, row["rows"]) == row["rows"], (rank, at)
        rows_by_rank.append(seen)
    return {
        at: [row for seen in rows_by_rank for row in seen.get(at, [])] for at in rows_by_rank[0]
    }
