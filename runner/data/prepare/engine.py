"""Runs the parts of a preparation: in this process, in several, or on a Ray cluster.

Each part is a task that reads and writes files by name, so that only names are transferred.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from runner.data.core.look_ahead import look_ahead
from runner.data.prepare.progress import Advance
from runner.errors import DataError, UserError

BASE_BYTES = 160_000_000  # of a process that has imported NumPy and Arrow
LEAST_BYTES = 90_000_000  # for the rows of a task, besides that
DEFAULT_TASK_BYTES = 10**9

Work = Callable[[Any, Advance], Any]


class Engine(Protocol):
    """Runs tasks, and returns their results in order."""

    num_workers: int
    is_bounded: bool  # whether a memory limit was set
    task_bytes: int  # of memory that a task may use, approximately

    def map(
        self, work: Work, tasks: Iterable[Any], advance: Advance, *, at_once: int | None = None
    ) -> Iterator[Any]:
        """Yield the result of `work(task, advance)` for one task after another.

        Args:
            work: a function of a module.
            tasks: their arguments; in this process the next one is asked for when the result of
                the one before has been taken.
            advance: is called with the number of finished units.
            at_once: maximum number of concurrent tasks, if fewer than there are workers.
        """


class InProcess:
    """Runs one task after another in this process."""

    num_workers = 1

    def __init__(self, memory_bytes: int | None = None) -> None:
        self.is_bounded = memory_bytes is not None
        self.task_bytes = bytes_of_task(memory_bytes, 1)

    def map(
        self, work: Work, tasks: Iterable[Any], advance: Advance, *, at_once: int | None = None
    ) -> Iterator[Any]:
        for task in tasks:
            yield work(task, advance)


class Processes:
    """Runs tasks in processes of this machine, which `close` ends."""

    def __init__(
        self,
        num_workers: int,
        memory_bytes: int | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        """Args: on_start: is called in each process when it has started."""
        self.num_workers, self.is_bounded = num_workers, memory_bytes is not None
        self.task_bytes = bytes_of_task(memory_bytes, num_workers)
        self._pool = ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=functools.partial(_start_worker, on_start),
        )

    def map(
        self, work: Work, tasks: Iterable[Any], advance: Advance, *, at_once: int | None = None
    ) -> Iterator[Any]:
        futures = (self._pool.submit(count_units, work, task) for task in tasks)
        try:
            for future in look_ahead(futures, at_once or 4 * self.num_workers):
                result, units = future.result()
                advance(units)
                yield result
        except BrokenProcessPool:
            raise DataError(
                "a process that prepares data was killed, perhaps for want of memory; what is done "
                "is kept: the same command goes on from there, with fewer --workers if need be"
            ) from None
        except UserError:
            self.close()  # before the parts are removed, to which processes may be writing
            raise

    def close(self) -> None:
        """End the processes immediately."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
            child.join()


class RayTasks:
    """Runs tasks on a connected Ray cluster, whose nodes share the files."""

    def __init__(self, num_workers: int, memory_bytes: int | None = None) -> None:
        self.num_workers, self.is_bounded = num_workers, memory_bytes is not None
        self.task_bytes = bytes_of_task(memory_bytes, num_workers)

    def map(
        self, work: Work, tasks: Iterable[Any], advance: Advance, *, at_once: int | None = None
    ) -> Iterator[Any]:
        import ray

        call = ray.remote(count_units).options(num_cpus=1)
        answers = (call.remote(work, task) for task in tasks)
        try:
            for answer in look_ahead(answers, min(at_once or self.num_workers, self.num_workers)):
                result, units = ray.get(answer)
                advance(units)
                yield result
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError | OSError):
                raise error.cause from None
            raise


def count_units(work: Work, task: Any) -> tuple[Any, int]:
    """Return the result of a task and its reported units of progress. Runs in a worker."""
    units = 0

    def advance(count: int) -> None:
        nonlocal units
        units += count

    return work(task, advance), units


def bytes_of_task(memory_bytes: int | None, num_workers: int) -> int:
    """Return the memory that remains for the rows of each of several concurrent tasks.

    Raises:
        UserError: if it is too little to start.
    """
    if memory_bytes is None:
        return DEFAULT_TASK_BYTES
    free_bytes = memory_bytes // num_workers - BASE_BYTES
    if free_bytes < LEAST_BYTES:
        least = num_workers * (BASE_BYTES + LEAST_BYTES)
        raise UserError(
            f"--memory {memory_bytes / 1e6:.0f}MB: {num_workers} workers need at least "
            f"{least / 1e6:.0f}MB"
        )
    return free_bytes


def _start_worker(on_start: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this one
    if on_start is not None:
        on_start()
