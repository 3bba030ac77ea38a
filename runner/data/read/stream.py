"""The rest of an epoch as pieces of windows: what one rank's batches are made of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from runner.data.core.columns import Columns
from runner.data.read.decode import BlockReader, Rows
from runner.data.read.index import BlockIndex
from runner.data.read.order import EpochPlan, plan_epoch

RowSpan = tuple[Rows, int, int]  # rows [start, stop) of a window


@dataclass(frozen=True)
class BatchSlice:
    """One batch of one rank, not yet put together."""

    spans: tuple[RowSpan, ...]
    end_offset: int  # offset in the epoch after the GLOBAL batch
    is_padding: bool = False  # the rank has no row in the last batch: one row, of weight 0


@dataclass(frozen=True)
class RankSlice:
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
    def num_full_batches(self) -> int:
        return (self.total - self.start) // self.global_batch_size

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.world_size

    @property
    def last_batch_range(self) -> tuple[int, int]:
        """Offsets of this rank in the shorter last batch; both the same: none."""
        done = self.start + self.num_full_batches * self.global_batch_size
        rest = self.total - done
        return (
            done + rest * self.rank // self.world_size,
            done + rest * (self.rank + 1) // self.world_size,
        )

    def offsets_in_window(self, low: int, high: int) -> np.ndarray | slice:
        """This rank's offsets in the window [low, high), counted from `low`."""
        if self.world_size == 1:
            return slice(max(self.start - low, 0), high - low)
        offsets = np.arange(max(low, self.start), high)
        mine = (offsets - self.start) // self.batch_size % self.world_size == self.rank
        tail = offsets >= self.start + self.num_full_batches * self.global_batch_size
        first, stop = self.last_batch_range
        mine[tail] = (offsets[tail] >= first) & (offsets[tail] < stop)
        return offsets[mine] - low


def iterate_batch_slices(
    index: BlockIndex,
    columns: Columns,
    rank_slice: RankSlice,
    *,
    seed: int | None,
    epoch: int,
    window_rows: int,
    workers: int = 0,
) -> Iterator[BatchSlice]:
    """Batches of `share.rank` in the exact order.

    Memory: two windows at most, and one more a worker.
    """
    plan_ = plan_epoch(index, seed=seed, epoch=epoch, window_rows=window_rows)
    waiting: list[RowSpan] = []
    num_waiting, num_done = 0, 0
    with WindowReader(index, columns, workers) as reading:
        for rows in reading.windows(plan_, rank_slice):
            at = 0
            while (
                num_done < rank_slice.num_full_batches
                and num_waiting + len(rows) - at >= rank_slice.batch_size
            ):
                stop = at + rank_slice.batch_size - num_waiting
                num_done += 1
                end = rank_slice.start + num_done * rank_slice.global_batch_size
                yield BatchSlice((*waiting, (rows, at, stop)), end)
                waiting, num_waiting, at = [], 0, stop
            if at < len(rows):
                waiting.append((rows, at, len(rows)))
                num_waiting += len(rows) - at
        if rank_slice.start + num_done * rank_slice.global_batch_size < rank_slice.total:
            if waiting:
                yield BatchSlice(tuple(waiting), rank_slice.total)
            else:  # every rank makes the same number of updates
                first = BlockReader(index, columns).read_rows(plan_.blocks(0), slice(0, 1))
                yield BatchSlice(((first, 0, 1),), rank_slice.total, is_padding=True)


class WindowReader:
    """Windows in order; with workers, that many are read ahead, each by a thread of its own.

    Arrow and NumPy work outside Python's lock, so threads are enough. The order cannot change: the
    windows are handed out in theirs, whoever is done first.
    """

    def __init__(self, index: BlockIndex, columns: Columns, workers: int) -> None:
        self._index, self._columns, self._workers = index, columns, workers
        self._own = threading.local()  # a reader a thread: its open files are not to be shared
        self._readers: list[BlockReader] = []

    def __enter__(self) -> WindowReader:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()

    def windows(self, epoch_plan: EpochPlan, rank_slice: RankSlice) -> Iterator[Rows]:
        numbers = range(epoch_plan.window_at(rank_slice.start), epoch_plan.num_windows)
        found = (
            self._ahead(epoch_plan, rank_slice, numbers)
            if self._workers
            else (self._open(epoch_plan, rank_slice, number) for number in numbers)
        )
        yield from (rows for rows in found if rows is not None)

    def _ahead(self, plan_: EpochPlan, share: RankSlice, numbers: range) -> Iterator[Rows | None]:
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

    def _open(self, plan_: EpochPlan, share: RankSlice, number: int) -> Rows | None:
        low, high = (int(o) for o in plan_.offset_K1[number : number + 2])
        wanted = share.offsets_in_window(low, high)
        if isinstance(wanted, np.ndarray) and not len(wanted):
            return None
        order = plan_.row_order(number)
        if not hasattr(self._own, "reader"):
            self._own.reader = BlockReader(self._index, self._columns)
            self._readers.append(self._own.reader)
        reader: BlockReader = self._own.reader
        return reader.read_rows(plan_.blocks(number), wanted if order is None else order[wanted])
