"""An epoch as slices of windows, from which one rank's batches are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from runner.data.core.columns import Columns
from runner.data.core.look_ahead import look_ahead
from runner.data.read.decode import BlockReader, Rows
from runner.data.read.index import BlockIndex
from runner.data.read.order import EpochPlan

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

    def rows_before(self, offset: int) -> int:
        """Return how many rows of this rank come before an offset of the epoch."""
        full_end = self.start + self.num_full_batches * self.global_batch_size
        full, rest = divmod(
            min(max(offset, self.start), full_end) - self.start, self.global_batch_size
        )
        begun = min(max(rest - self.rank * self.batch_size, 0), self.batch_size)
        first, stop = self.last_batch_range
        return full * self.batch_size + begun + min(max(offset - first, 0), stop - first)

    def offsets_in_window(self, low: int, high: int) -> np.ndarray | slice:
        """Return this rank's offsets in the window [low, high), counted from `low`."""
        if self.world_size == 1:
            return slice(max(self.start - low, 0), high - low)
        offsets = np.arange(max(low, self.start), high)
        is_local = (offsets - self.start) // self.batch_size % self.world_size == self.rank
        tail = offsets >= self.start + self.num_full_batches * self.global_batch_size
        first, stop = self.last_batch_range
        is_local[tail] = (offsets[tail] >= first) & (offsets[tail] < stop)
        return np.asarray(offsets[is_local] - low)


class WindowSource(Protocol):
    """Provides the rows of a window, for one thread at a time."""

    def read_window(
        self, epoch_plan: EpochPlan, rank_slice: RankSlice, number: int
    ) -> Sequence[Rows]:
        """Return a rank's rows in a window, in order, in any number of parts."""
        ...

    def read_first_row(self, epoch_plan: EpochPlan) -> Rows:
        """Return the first row of the first window in the order of the files."""
        ...

    def cancel(self) -> None:
        """Make a read for which another thread waits fail soon, since it is no longer needed."""
        return

    def close(self) -> None: ...


class FileWindows(WindowSource):
    """Reads windows from the files of a split."""

    def __init__(self, index: BlockIndex, columns: Columns) -> None:
        self._reader = BlockReader(index, columns)

    def read_window(
        self, epoch_plan: EpochPlan, rank_slice: RankSlice, number: int
    ) -> Sequence[Rows]:
        low, high = epoch_plan.window_range(number)
        local = rank_slice.offsets_in_window(low, high)
        if isinstance(local, np.ndarray) and not len(local):
            return ()
        order = epoch_plan.row_order(number)
        rows = local if order is None else order[local]
        return (self._reader.read_rows(epoch_plan.blocks(number), rows),)

    def read_first_row(self, epoch_plan: EpochPlan) -> Rows:
        return self._reader.read_rows(epoch_plan.blocks(0), slice(0, 1))

    def close(self) -> None:
        self._reader.close()


def iterate_batch_slices(
    epoch_plan: EpochPlan,
    rank_slice: RankSlice,
    open_source: Callable[[], WindowSource],
    *,
    workers: int = 0,
) -> Iterator[BatchSlice]:
    """Yield the batches of one rank in the exact order.

    Memory: at most two windows, and one more for each worker.
    """
    waiting: list[RowSpan] = []
    num_waiting, num_done = 0, 0
    with closing(WindowReader(open_source, workers)) as window_reader:
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
            else:  # every rank makes the same number of updates, so it needs a row
                row = window_reader.read_first_row(epoch_plan)
                yield BatchSlice(((row, 0, 1),), rank_slice.total, is_padding=True)


class WindowReader:
    """Reads windows in order; `workers` threads read as many of them in advance.

    Arrow and NumPy release the GIL, so threads suffice. The order of the windows does not depend
    on which thread finishes first.
    """

    def __init__(self, open_source: Callable[[], WindowSource], workers: int) -> None:
        self._open_source, self._workers = open_source, workers
        self._local = threading.local()  # each thread has its source; files are not shared
        self._sources: list[WindowSource] = []

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def windows(self, epoch_plan: EpochPlan, rank_slice: RankSlice) -> Iterator[Rows]:
        first = epoch_plan.window_at(rank_slice.start)
        stop = epoch_plan.window_at(rank_slice.total - 1) + 1  # the rows of `drop` lie behind
        numbers = range(first, stop)
        windows = (
            self._read_ahead(epoch_plan, rank_slice, numbers)
            if self._workers
            else (self._read(epoch_plan, rank_slice, number) for number in numbers)
        )
        for parts in windows:
            yield from parts

    def read_first_row(self, epoch_plan: EpochPlan) -> Rows:
        return self._source().read_first_row(epoch_plan)

    def _read_ahead(
        self, epoch_plan: EpochPlan, rank_slice: RankSlice, numbers: range
    ) -> Iterator[Sequence[Rows]]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="window") as pool:
            futures = (pool.submit(self._read, epoch_plan, rank_slice, n) for n in numbers)
            try:
                for future in look_ahead(futures, self._workers + 1):
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for source in self._sources:
                    source.cancel()

    def _read(self, epoch_plan: EpochPlan, rank_slice: RankSlice, number: int) -> Sequence[Rows]:
        return self._source().read_window(epoch_plan, rank_slice, number)

    def _source(self) -> WindowSource:
        if not hasattr(self._local, "source"):
            self._local.source = self._open_source()
            self._sources.append(self._local.source)
        source: WindowSource = self._local.source
        return source
