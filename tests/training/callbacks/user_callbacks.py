"""Callbacks as a user would write them, for tests."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import numpy as np
import torch


class Diary:
    """Writes a line for every event into a file a rank; DIARY names it, if `file` does not."""

    on_every_rank = True
    stateless = True

    def __init__(self, *, file: str | None = None) -> None:
        self.file = file or os.environ["DIARY"]

    def _write(self, training: Any, *words: Any) -> None:
        with open(f"{self.file}.{training.ranks.rank}", "a") as file:
            file.write(json.dumps([training.step, *words]) + "\n")

    def on_run_start(self, training: Any) -> None:
        self._write(training, "run_start")

    def on_epoch_start(self, training: Any) -> None:
        self._write(training, "epoch_start", training.state.cursor.epoch)

    def on_batch_start(self, training: Any) -> None:
        self._write(training, "batch_start")

    def on_update(self, training: Any, output: Any) -> None:
        self._write(training, "update", output.rows_B.numel())

    def on_epoch(self, training: Any) -> None:
        self._write(training, "epoch", training.now.epoch)

    def on_evaluation_start(self, training: Any, split: str) -> None:
        self._write(training, "evaluation_start", split)

    def on_evaluation(self, training: Any, split: str, metrics: Any) -> None:
        self._write(training, "evaluation", split, sorted(metrics)[0])

    def on_best(self, training: Any, metrics: Any) -> None:
        assert training.state.best.metrics == metrics
        self._write(training, "best")

    def on_checkpoint(self, training: Any) -> None:
        self._write(training, "checkpoint")

    def on_run_end(self, training: Any, result: Any) -> None:
        self._write(training, "run_end", result.status)


class Averager:
    """Has a state that changes the result: pulls a bias towards its own moving average."""

    on_every_rank = True

    def __init__(self, *, pull: float = 0.5) -> None:
        self.pull, self.average = pull, 0.0

    def on_update(self, training: Any, output: Any) -> None:
        bias = training.context.model.top[-1].bias
        self.average = 0.9 * self.average + 0.1 * float(bias)
        with torch.no_grad():
            bias.mul_(1 - self.pull).add_(self.pull * self.average)

    def state(self) -> dict[str, float]:
        return {"average": self.average}

    def load_state(self, saved: dict[str, float]) -> None:
        self.average = saved["average"]


class Gambler:
    """Draws from every generator there is."""

    on_every_rank = True
    stateless = True

    def on_update(self, training: Any, output: Any) -> None:
        torch.rand(5), random.random(), np.random.rand(3)


class Sleeper:
    """Makes every update longer."""

    stateless = True

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds

    def on_update(self, training: Any, output: Any) -> None:
        time.sleep(self.seconds)


class Asker:
    """Calls a method of the training, or raises, at one event of one step on one rank."""

    on_every_rank = True
    stateless = True

    def __init__(self, *, step: int, what: str, event: str = "on_update", rank: int = 0) -> None:
        self.step, self.what, self.event, self.rank = step, what, event, rank

    def _at(self, training: Any, event: str) -> None:
        here = (training.step, training.ranks.rank, event)
        if here != (self.step, self.rank, self.event):
            return
        if self.what == "raise":
            raise ValueError("out of ideas")
        getattr(training, self.what)("it is enough")

    def on_run_start(self, training: Any) -> None:
        self._at(training, "on_run_start")

    def on_update(self, training: Any, output: Any) -> None:
        self._at(training, "on_update")

    def on_epoch_start(self, training: Any) -> None:
        self._at(training, "on_epoch_start")

    def on_batch_start(self, training: Any) -> None:
        self._at(training, "on_batch_start")

    def on_epoch(self, training: Any) -> None:
        self._at(training, "on_epoch")

    def on_evaluation_start(self, training: Any, split: str) -> None:
        self._at(training, "on_evaluation_start")

    def on_best(self, training: Any, metrics: Any) -> None:
        self._at(training, "on_best")

    def on_evaluation(self, training: Any, split: str, metrics: Any) -> None:
        self._at(training, "on_evaluation")

    def on_checkpoint(self, training: Any) -> None:
        self._at(training, "on_checkpoint")

    def on_run_end(self, training: Any, result: Any) -> None:
        self._at(training, "on_run_end")


class Undeclared:
    """Has no state to save, and does not say so."""

    def on_update(self, training: Any, output: Any) -> None:
        return
