"""Measures where the time of a training goes: each part of the job is timed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.training.job import Job


@dataclass
class Parts:
    """Seconds by part; time that a part spends in another part is counted there only.

    cpu_s: processor time of the thread that trains. A clock around a part costs 2 microseconds.
    """

    wall_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _open: list[list[float]] = field(default_factory=list)

    def enter(self) -> None:
        self._open.append([time.perf_counter(), time.thread_time(), 0.0, 0.0])

    def leave(self, part: str) -> None:
        wall_s, cpu_s, inner_wall_s, inner_cpu_s = self._open.pop()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        self.wall_s[part] += wall_s - inner_wall_s
        self.cpu_s[part] += cpu_s - inner_cpu_s
        if self._open:
            self._open[-1][2] += wall_s
            self._open[-1][3] += cpu_s


class Clocked:
    """An object with clocks around some of its methods."""

    def __init__(self, inner: Any, parts: Parts, part_of: Mapping[str, str]) -> None:
        self._inner, self._parts, self._part_of = inner, parts, part_of

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in self._part_of:
            return value

        def timed(*args: Any, **more: Any) -> Any:
            self._parts.enter()
            try:
                return value(*args, **more)
            finally:
                self._parts.leave(self._part_of[name])

        setattr(self, name, timed)  # the next call finds it without asking here
        return timed


class ClockedBatches:
    """A dataset whose batches are timed as they are made."""

    def __init__(self, inner: Any, parts: Parts) -> None:
        self._inner, self._parts = inner, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def batches(self, *args: Any, **more: Any) -> Iterator[Any]:
        source = iter(self._inner.batches(*args, **more))
        while True:
            self._parts.enter()
            try:
                batch = next(source, None)
            finally:
                self._parts.leave("data")
            if batch is None:
                return
            yield batch


def clocked(job: Job, parts: Parts) -> Job:
    """The same job; parts: data, update, metrics, log, view, save (the stall) and wait (at the
    end, for what is still being written)."""
    assert job.run is not None
    log = {"append": "log"}
    return replace(
        job,
        dataset=ClockedBatches(job.dataset, parts),  # type: ignore[arg-type]
        task=Clocked(job.task, parts, {"train_step": "update"}),
        train_metrics=Clocked(  # type: ignore[arg-type]
            job.train_metrics, parts, {"update": "metrics", "compute": "log", "reset": "log"}
        ),
        view=Clocked(job.view, parts, {"step": "view", "log": "log"}),  # type: ignore[arg-type]
        run=replace(
            job.run,
            metrics=Clocked(job.run.metrics, parts, log),  # type: ignore[arg-type]
            perf=Clocked(job.run.perf, parts, log),  # type: ignore[arg-type]
        ),
        checkpointer=Clocked(  # type: ignore[arg-type]
            job.checkpointer, parts, {"save": "save", "finish": "wait"}
        ),
    )
