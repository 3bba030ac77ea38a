"""The rest of an epoch as pieces of windows: what one rank's batches are made of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from runner.data.core.columns import Columns
from runner.data.read.decode import Reader, Rows
from runner.data.read.index import Index
from runner.data.read.order import Plan, plan

Part = tuple[Rows, int, int]  # rows [start, stop) of a window


@dataclass(frozen=True)
class Piece:
    """One batch of one rank, not yet put together."""

    parts: tuple[Part, ...]
    end: int  # offset in the epoch after the GLOBAL batch
    padding: bool = False  # the rank has no row in the last batch: one row, of weight 0


@dataclass(frozen=True)
class Share:
    """Which offsets from `start` to `total` are this rank's.

    Global batch k is the k-th run of batch_size * world_size offsets, and rank r has the r-th part
    of it. The last global batch is shorter and split as evenly as can be.
    """

    start: int
    total: int
    batch_size: int
    rank: int
    world_size: int

    @property
    def num_full(self) -> int:
        return (self.total - self.start) // self.global_size

    @property
    def global_size(self) -> int:
        return self.batch_size * self.world_size

    @property
    def last(self) -> tuple[int, int]:
        """Offsets of this rank in the shorter last batch; both the same: none."""
        done = self.start + self.num_full * self.global_size
        rest = self.total - done
        return (
            done + rest * self.rank // self.world_size,
            done + rest * (self.rank + 1) // self.world_size,
        )

    def within(self, low: int, high: int) -> np.ndarray | slice:
        """This rank's offsets in the window [low, high), counted from `low`."""
        if self.world_size == 1:
            return slice(max(self.start - low, 0), high - low)
        offsets = np.arange(max(low, self.start), high)
        mine = (offsets - self.start) // self.batch_size % self.world_size == self.rank
        tail = offsets >= self.start + self.num_full * self.global_size
        first, stop = self.last
        mine[tail] = (offsets[tail] >= first) & (offsets[tail] < stop)
        return offsets[mine] - low


def pieces(
    index: Index,
    columns: Columns,
    share: Share,
    *,
    seed: int | None,
    epoch: int,
    window_rows: int,
    workers: int = 0,
) -> Iterator[Piece]:
    """Batches of `share.rank` in the exact order.

    Memory: two windows at most, and one more a worker.
    """
    plan_ = plan(index, seed=seed, epoch=epoch, window_rows=window_rows)
    waiting: list[Part] = []
    num_waiting, num_done = 0, 0
    with Reading(index, columns, workers) as reading:
        for rows in reading.windows(plan_, share):
            at = 0
            while num_done < share.num_full and num_waiting + len(rows) - at >= share.batch_size:
                stop = at + share.batch_size - num_waiting
                num_done += 1
                end = share.start + num_done * share.global_size
                yield Piece((*waiting, (rows, at, stop)), end)
                waiting, num_waiting, at = [], 0, stop
            if at < len(rows):
                waiting.append((rows, at, len(rows)))
                num_waiting += len(rows) - at
        if share.start + num_done * share.global_size < share.total:
            if waiting:
                yield Piece(tuple(waiting), share.total)
            else:  # every rank makes the same number of updates
                first = Reader(index, columns).rows(plan_.blocks(0), slice(0, 1))
                yield Piece(((first, 0, 1),), share.total, padding=True)


class Reading:
    """Windows in order; with workers, that many are read ahead, each by a thread of its own.

    Arrow and NumPy work outside Python's lock, so threads are enough. The order cannot change: the
    windows are handed out in theirs, whoever is done first.
    """

    def __init__(self, index: Index, columns: Columns, workers: int) -> None:
        self._index, self._columns, self._workers = index, columns, workers
        self._own = threading.local()  # a reader a thread: its open files are not to be shared
        self._readers: list[Reader] = []

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()

    def windows(self, plan_: Plan, share: Share) -> Iterator[Rows]:
        numbers = range(plan_.window_at(share.start), plan_.num_windows)
        found = (
            self._ahead(plan_, share, numbers)
            if self._workers
            else (self._open(plan_, share, number) for number in numbers)
        )
        yield from (rows for rows in found if rows is not None)

    def _ahead(self, plan_: Plan, share: Share, numbers: range) -> Iterator[Rows | None]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="window") as pool:
            waiting: deque[Future[Rows | None]] = deque()
            try:
                for number in numbers:
                    waiting.append(pool.submit(self._open, plan_, share, number))
                    if len(waiting) > self._workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _open(self, plan_: Plan, share: Share, number: int) -> Rows | None:
        low, high = (int(o) for o in plan_.offset_K1[number : number + 2])
        wanted = share.within(low, high)
        if isinstance(wanted, np.ndarray) and not len(wanted):
            return None
        order = plan_.row_order(number)
        if not hasattr(self._own, "reader"):
            self._own.reader = Reader(self._index, self._columns)
            self._readers.append(self._own.reader)
        reader: Reader = self._own.reader
        return reader.rows(plan_.blocks(number), wanted if order is None else order[wanted])
