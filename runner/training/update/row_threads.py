"""Threads that compute the dense half of an update for some of its rows each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import profiler as autograd_profiler
from torch.nn.modules.module import _has_any_global_hook

from runner.models.layers.hooks import is_hooked

Part = TypeVar("Part")
Result = TypeVar("Result")


class RowThreads:
    """Computes parts of the rows of an update at the same time.

    Threads that share each operation wait for each other at its end, some hundred times in an
    update; threads that have rows of their own wait once. So two of them are worth more, and lose
    little where another process uses one of the cores.

    Args:
        modules: of the dense half.
        num_threads: parts into which the rows that the dense half takes at once are divided.
        num_threads_within: threads that share an operation of a part.

    Attributes:
        one_at_a_time: parts are computed one after another, as they are while `is_watched`, with
            the same numbers.
    """

    def __init__(
        self, modules: Sequence[nn.Module], num_threads: int, *, num_threads_within: int = 1
    ) -> None:
        self.num_threads, self.num_threads_within = num_threads, num_threads_within
        self.one_at_a_time = False
        self._modules = modules
        self._parameters = [p for module in modules for p in module.parameters(recurse=False)]
        self._pool: ThreadPoolExecutor | None = None

    def may_run_at_once(self) -> bool:
        """Return whether several threads may call the dense half."""
        return not (self.one_at_a_time or self.is_watched())

    def is_watched(self) -> bool:
        """Return whether something sees what the dense half does, and may expect one thread.

        A hook does, a debugger, and torch's profiler and modes, which belong to one thread.
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

    @contextmanager
    def operation_threads(self) -> Iterator[None]:
        """Within the block an operation of this thread has as many threads as one of a part has."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.num_threads_within)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def run_all(self, works: Iterable[Callable[[], object]]) -> None:
        """Call functions of one thread each, in any order and several at a time."""
        waiting = iter(tuple(works))  # one thread at a time takes the next
        num_threads = self.num_threads if self.may_run_at_once() else 1

        def run_some(_: int) -> None:
            for work in waiting:
                work()

        for _ in self.map(run_some, iter(range(num_threads))):
            pass

    def map(self, work: Callable[[Part], Result], parts: Iterator[Part]) -> Iterator[Result]:
        """Yield the results of the parts in their order.

        An error in a part is raised when no thread computes any more.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.num_threads - 1,
                thread_name_prefix="rows",
                initializer=torch.set_num_threads,
                initargs=(self.num_threads_within,),
            )
        while wave := list(islice(parts, self.num_threads)):
            others = [self._pool.submit(work, part) for part in wave[1:]]
            try:
                first = work(wave[0])
            finally:
                wait(others)
            yield from [first, *(other.result() for other in others)]
