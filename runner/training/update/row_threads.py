"""Threads that each compute the dense half of an update for a part of its rows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TypeVar

import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import profiler as autograd_profiler
from torch.nn.modules.module import _has_any_global_hook

from runner.models.layers.hooks import is_hooked
from runner.models.layers.part_exchange import PartExchange

Part = TypeVar("Part")
Result = TypeVar("Result")


class RowThreads:
    """Computes parts of the rows of an update at the same time.

    Threads that share each operation wait for each other at its end, some hundred times in an
    update; threads with separate rows wait once. So two of them are faster, and lose little if
    another process uses one of the cores.

    Args:
        modules: of the dense half.
        num_threads: parts into which the rows that the dense half takes at once are divided.
        num_threads_within: threads that share an operation of a part.
        are_coupled: whether rows depend on each other by batch norms, for which the threads of a
            part wait for each other.

    Attributes:
        one_at_a_time: whether parts are computed one after another, as while `is_watched`, with
            the same numbers; coupled rows are then one part, with the same numbers except for
            rounding.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        num_threads: int,
        *,
        num_threads_within: int = 1,
        are_coupled: bool = False,
    ) -> None:
        self.num_threads, self.num_threads_within = num_threads, num_threads_within
        self.are_coupled = are_coupled
        self.one_at_a_time = False
        self._modules = modules
        self._parameters = [p for module in modules for p in module.parameters(recurse=False)]
        self._pool: ThreadPoolExecutor | None = None

    def may_run_at_once(self) -> bool:
        """Return whether several threads may call the dense half."""
        return not (self.one_at_a_time or self.is_watched())

    def is_watched(self) -> bool:
        """Return whether something observes the dense half, and may require a single thread.

        That is a hook, a debugger, or torch's profiler or a mode, which belong to one thread.
        """
        return (
            sys.gettrace() is not None
            or autograd_profiler._is_profiler_enabled
            or torch.is_anomaly_enabled()
            or _len_torch_dispatch_stack() > 0
            or _len_torch_function_stack() > 0
            or _has_any_global_hook()  # type: ignore[no-untyped-call]
            or any(map(is_hooked, self._modules))
            or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters)
        )

    def rows_of_part(self, num_rows: int, *, at_once: bool) -> int:
        """Return the size of the parts into which rows of the dense half are divided.

        Args:
            at_once: whether several threads compute.
        """
        return num_rows if self.are_coupled and not at_once else -(-num_rows // self.num_threads)

    @contextmanager
    def operation_threads(self) -> Iterator[None]:
        """Use the number of threads of a part's operations within the block."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.num_threads_within)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def run_all(self, works: Iterable[Callable[[], object]]) -> None:
        """Call functions of one thread each, in any order and several at a time."""
        waiting = iter(tuple(works))  # threads take the next function one at a time
        num_threads = self.num_threads if self.may_run_at_once() else 1

        def run_some(_: int) -> None:
            for work in waiting:
                work()

        for _ in self.map(run_some, iter(range(num_threads))):
            pass

    def map(
        self,
        work: Callable[[Part], Result],
        parts: Iterator[Part],
        *,
        exchange: PartExchange | None = None,
    ) -> Iterator[Result]:
        """Yield the results of the parts in their order.

        An error in a part is raised after all threads have ended.

        Args:
            parts: the parts, of which each thread takes one at a time.
            exchange: of coupled parts, each of which waits for all others.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.num_threads - 1,
                thread_name_prefix="rows",
                initializer=torch.set_num_threads,
                initargs=(self.num_threads_within,),
            )

        def compute(number: int, part: Part) -> Result:
            with nullcontext() if exchange is None else exchange.part(number):
                return work(part)

        while wave := list(islice(parts, self.num_threads)):
            futures = [self._pool.submit(compute, n, part) for n, part in enumerate(wave[1:], 1)]
            try:
                first = [compute(0, wave[0])]
            except threading.BrokenBarrierError:  # an error of another part follows
                first = []
            finally:
                wait(futures)
            errors = [error for other in futures if (error := other.exception())]
            for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
                raise error
            yield from [*first, *(other.result() for other in futures)]
