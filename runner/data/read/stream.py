"""An epoch as slices of windows, of which one rank's batches are made."""

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
    """The rows of one batch of one rank, not yet collated."""

    spans: tuple[RowSpan, ...]
    end_offset: int  # offset in the epoch after the GLOBAL batch
    is_padding: bool = False  # the rank has no row in the last batch and gets one of weight 0


@dataclass(frozen=True)
class RankSlice:
    """One rank's share of the offsets `start` to `total` - 1.

    Global batch k is the k-th group of batch_size * world_size offsets, and rank r has the r-th
    part of it. The last global batch may be shorter and is split as evenly as possible.
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
        """First and end offset of this rank in the shorter last batch; equal if it has none."""
        first = self.start + self.num_full_batches * self.global_batch_size
        num_rest = self.total - first
        return (
            first + num_rest * self.rank // self.world_size,
            first + num_rest * (self.rank + 1) // self.world_size,
        )

    def offsets_in_window(self, low: int, high: int) -> np.ndarray | slice:
        """Return this rank's offsets in the window [low, high), counted from `low`."""
        if self.world_size == 1:
            return slice(max(self.start - low, 0), high - low)
        offsets = np.arange(max(low, self.start), high)
        is_local = (offsets - self.start) // self.batch_size % self.world_size == self.rank
        tail = offsets >= self.start + self.num_full_batches * self.global_batch_size
        first, stop = self.last_batch_range
        is_local[tail] = (offsets[tail] >= first) & (offsets[tail] < stop)
        local: np.ndarray = offsets[is_local] - low
        return local


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
    """Yield the batches of one rank in the exact order.

    Memory: at most two windows, and one more for each worker.
    """
    epoch_plan = plan_epoch(index, seed=seed, epoch=epoch, window_rows=window_rows)
    waiting: list[RowSpan] = []
    num_waiting, num_done = 0, 0
    with WindowReader(index, columns, workers) as window_reader:
        for rows in window_reader.windows(epoch_plan, rank_slice):
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
            else:  # every rank makes the same number of updates, so it needs some row
                row = BlockReader(index, columns).read_rows(epoch_plan.blocks(0), slice(0, 1))
                yield BatchSlice(((row, 0, 1),), rank_slice.total, is_padding=True)


class WindowReader:
    """Reads windows in order; `workers` threads read as many of them in advance.

    Arrow and NumPy release the GIL, so threads are enough. The order of the windows does not depend
    on which thread finishes first.
    """

    def __init__(self, index: BlockIndex, columns: Columns, workers: int) -> None:
        self._index, self._columns, self._workers = index, columns, workers
        self._local = threading.local()  # each thread has a reader, whose files are not shared
        self._readers: list[BlockReader] = []

    def __enter__(self) -> WindowReader:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()

    def windows(self, epoch_plan: EpochPlan, rank_slice: RankSlice) -> Iterator[Rows]:
        numbers = range(epoch_plan.window_at(rank_slice.start), epoch_plan.num_windows)
        windows = (
            self._read_ahead(epoch_plan, rank_slice, numbers)
            if self._workers
            else (self._read(epoch_plan, rank_slice, number) for number in numbers)
        )
        yield from (rows for rows in windows if rows is not None)

    def _read_ahead(
        self, epoch_plan: EpochPlan, rank_slice: RankSlice, numbers: range
    ) -> Iterator[Rows | None]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="window") as pool:
            waiting: deque[Future[Rows | None]] = deque()
            try:
                for number in numbers:
                    waiting.append(pool.submit(self._read, epoch_plan, rank_slice, number))
                    if len(waiting) > self._workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, epoch_plan: EpochPlan, rank_slice: RankSlice, number: int) -> Rows | None:
        """Return the rank's rows of a window; None if it has none there."""
        low, high = (int(o) for o in epoch_plan.offset_K1[number : number + 2])
        local = rank_slice.offsets_in_window(low, high)
        if isinstance(local, np.ndarray) and not len(local):
            return None
        if not hasattr(self._local, "reader"):
            self._local.reader = BlockReader(self._index, self._columns)
            self._readers.append(self._local.reader)
        reader: BlockReader = self._local.reader
        order = epoch_plan.row_order(number)
        return reader.read_rows(epoch_plan.blocks(number), local if order is None else order[local])
