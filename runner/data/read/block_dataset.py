"""The base of datasets with rows in blocks, in local files or read by servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition
from runner.config_value import check_value
from runner.data.core.argument_types import Rest
from runner.data.core.columns import Columns
from runner.data.core.dataset import START_POSITION, Dataset, epoch_end_offset
from runner.data.growing.settings import Growth
from runner.data.read.collate import build_schema, collate
from runner.data.read.index import BlockIndex
from runner.data.read.order import plan_epoch
from runner.data.read.prefetch import prefetch_in_thread
from runner.data.read.reader_process import batches_from_process
from runner.data.read.stream import RankSlice, WindowSource, iterate_batch_slices
from runner.errors import DataError, nearest_hint
from runner.parts import internal

BURST_ROWS = 32_768
LEAST_ROWS_OF_PROCESS = 131_072  # per rank; for fewer, starting it takes longer than it saves


@internal
class BlockDataset(Dataset):
    """Makes batches from windows of blocks in the exact order, whatever provides the windows.

    Args:
        window_rows: rows that are in memory and shuffled together; affects the order.
        prefetch: batches that a thread makes in advance, 0 for none; does not affect the order.
        workers: threads that each read one window in advance, 0 for none; do not affect the order.
            None: one as soon as `read_ahead` is called, or, in a separate process, as many as
            `read_in_process` is given.
        rest: policy for the rows at the end of a training epoch that do not fill a batch; all
            ranks make the same number of updates. short: the last batch is shorter. drop: they are
            dropped, others in each epoch. pad: the batch is filled up with rows of weight 0.
        bad_rows: count and examples of the rows that preparation skipped.
        reachable: split -> metric -> best possible value, for planted data.

    Raises:
        ConfigError: if `rest` is not a policy.
    """

    def __init__(
        self,
        indexes: Mapping[str, BlockIndex],
        columns: Columns,
        *,
        window_rows: int = 131_072,
        prefetch: int = 0,
        workers: int | None = None,
        rest: str = "short",
        bad_rows: Mapping[str, Any] | None = None,
        reachable: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        check_value("dataset.rest", rest, Rest)
        self.indexes, self.columns = indexes, columns
        self.rest, self.window_rows = rest, window_rows
        self.bad_rows = bad_rows or {"count": 0, "examples": []}
        self.schema = build_schema(columns)
        self.growth: Mapping[str, Growth] = columns.growth
        self.reachable = reachable
        self.num_rows: Mapping[str, int] = {s: index.num_rows for s, index in indexes.items()}
        self.sparse_keys = [feature.name for feature in self.schema.sparse]
        self.sequence_keys = [feature.name for feature in self.schema.sequences]
        self._prefetch, self._workers = prefetch, workers
        self._has_process = False

    def read_ahead(self) -> None:
        """Read windows in a thread from now on, unless the number of threads was set."""
        if self._workers is None:
            self._workers = 1

    def read_in_process(self, threads: int) -> None:
        """Make the batches in a process from now on, with so many threads that read windows.

        Nothing changes if the number of threads was set, or `prefetch` was.
        """
        if self._workers is None and not self._prefetch:
            self._workers, self._has_process = threads, True

    def source_opener(self, split: str) -> Callable[[], WindowSource]:
        """Return a function that opens a source of a split's windows; each thread opens its own."""
        raise NotImplementedError

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int | None = None,
        start: DataPosition = START_POSITION,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """Return one epoch's batches, see `Dataset.batches`.

        A rank without rows in the last batch gets a row of weight 0.

        Raises:
            DataError: if there is no such split, or `start` is outside it.
        """
        if split not in self.indexes:
            raise DataError(
                f"no {split!r} split; there are {', '.join(self.indexes)}"
                f"{nearest_hint(split, self.indexes)}"
            )
        total = self.num_rows[split]
        if not 0 <= start.offset < total:
            raise DataError(
                f"position {start.offset} is outside the {total} rows of {split!r}: "
                "the data have changed; put the old files back, or begin a new run"
            )
        if seed is None or split != "train":
            end, padded_size = total, 0
        else:
            end = epoch_end_offset(self, start.offset, batch_size * world_size)
            if end == start.offset:
                return iter(())
            padded_size = batch_size if self.rest == "pad" else 0
        rank_slice = RankSlice(start.offset, end, batch_size, rank, world_size)
        make = partial(self._batches, split, rank_slice, seed, start.epoch, padded_size)
        if self._has_process and end - start.offset >= LEAST_ROWS_OF_PROCESS * world_size:
            pinned = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
            return batches_from_process(make, len(self.columns.singles), pinned=pinned)
        batches = make()
        if self._prefetch:
            return prefetch_in_thread(batches, self._prefetch)
        return iterate_in_bursts(batches, BURST_ROWS // batch_size)

    def _batches(
        self, split: str, rank_slice: RankSlice, seed: int | None, epoch: int, padded_size: int
    ) -> Iterator[Batch]:
        """Yield a rank's batches; the last one is padded to `padded_size` rows unless that is 0."""
        plan = plan_epoch(self.indexes[split], seed=seed, epoch=epoch, window_rows=self.window_rows)
        opener = self.source_opener(split)
        workers = self._workers or 0
        for batch_slice in iterate_batch_slices(plan, rank_slice, opener, workers=workers):
            end = batch_slice.end_offset
            is_last = end == rank_slice.total
            cursor = DataPosition(epoch + 1, 0) if is_last else DataPosition(epoch, end)
            batch = collate(batch_slice, self.sparse_keys, cursor, self.sequence_keys)
            if is_last:
                batch = drop_ids(batch) if batch_slice.is_padding else batch
                batch = pad_batch(batch, padded_size)
            yield batch


def iterate_in_bursts(batches: Iterator[Batch], burst_size: int) -> Iterator[Batch]:
    """Yield the same batches, computing `burst_size` of them at a time.

    An update evicts this module's code and arrays from the processor's caches, so that a batch
    made alone costs twice as much as one in a burst. Memory: `burst_size` batches.
    """
    while burst := list(itertools.islice(batches, max(1, burst_size))):
        yield from burst


def pad_batch(batch: Batch, batch_size: int) -> Batch:
    """Fill a batch up to `batch_size` rows.

    The added rows have weight 0, number -1 and no ids, so that they touch no table.
    """
    missing = batch_size - batch.size
    if missing <= 0:
        return batch
    below, after = (0, 0, 0, missing), (0, missing)
    sequences = None if batch.sequences is None else _pad_kjt(batch.sequences, batch.size, missing)
    return replace(
        batch,
        dense_BD=functional.pad(batch.dense_BD, below),
        sparse=_pad_kjt(batch.sparse, batch.size, missing),
        sequences=sequences,
        labels_BT=functional.pad(batch.labels_BT, below),
        weights_B=functional.pad(batch.weights_B, after),
        rows_B=functional.pad(batch.rows_B, after, value=-1),
        groups_BG=functional.pad(batch.groups_BG, below),
    )


def drop_ids(batch: Batch) -> Batch:
    """Remove all ids from the batch of a rank without rows.

    Its weight is 0, but it must not look up ids either: otherwise a stateful optimizer would make a
    step that it would not make with another number of ranks.
    """
    sequences = None if batch.sequences is None else _pad_kjt(batch.sequences, 0, batch.size)
    return replace(batch, sparse=_pad_kjt(batch.sparse, 0, batch.size), sequences=sequences)


def _pad_kjt(kjt: KeyedJaggedTensor, num_kept: int, num_empty: int) -> KeyedJaggedTensor:
    """Keep `num_kept` rows, which must be all or 0, and append `num_empty` rows without ids."""
    weights = kjt.weights_or_none()
    lengths_FB = kjt.lengths().view(len(kjt.keys()), kjt.stride())[:, :num_kept]
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=kjt.values() if num_kept else kjt.values()[:0],
        weights=weights if num_kept or weights is None else weights[:0],
        lengths=functional.pad(lengths_FB, (0, num_empty)).flatten(),
        stride=num_kept + num_empty,
    )
