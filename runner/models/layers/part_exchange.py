"""Exchange between threads that compute parts of the rows of an update concurrently."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_of_thread = threading.local()


class PartExchange:
    """Gives the threads of an update access to each other's values.

    So a batch norm has the statistics of all of them. Every thread makes the same calls in the same
    order, and waits in each for all others.

    Args:
        num_parts: the number of threads.
    """

    is_distributed = True  # used in place of `Ranks`, which sum over processes

    def __init__(self, num_parts: int) -> None:
        self._barrier = threading.Barrier(num_parts)
        # A call's argument is overwritten by the next but one, which waits until all have read it.
        self._given: list[list[Any]] = [[None] * num_parts for _ in range(2)]

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Let this thread compute the part with this number in the block.

        An error in the block ends the waiting of all others by `threading.BrokenBarrierError`.
        """
        _of_thread.part, _of_thread.num_calls = (self, number), 0
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise
        finally:
            del _of_thread.part

    @property
    def is_first(self) -> bool:
        """Whether this thread computes the first part."""
        return self._number == 0

    @property
    def _number(self) -> int:
        _, number = _of_thread.part
        return int(number)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all threads, in the order of the parts."""
        values = self._given[_of_thread.num_calls % 2]
        _of_thread.num_calls += 1
        values[self._number] = value
        self._barrier.wait()
        return list(values)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum over the parts, in their order, in place."""
        first, *others = self.gather(values.clone())
        values.copy_(first)
        for other in others:
            values += other
        return values


def current_exchange() -> PartExchange | None:
    """Return the exchange of the part computed by this thread; None: it computes all rows."""
    exchange, _ = getattr(_of_thread, "part", (None, 0))
    return exchange
