"""A dataset of declared columns in Parquet or prepared Arrow files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from runner.batch import Batch, DataPosition
from runner.data.core.argument_types import LAST_BATCH_POLICIES
from runner.data.core.cache import cache_root
from runner.data.core.columns import CARRIED_PREFIX, Columns
from runner.data.core.dataset import START_POSITION, epoch_end_offset
from runner.data.core.fitted import copy_fitted_transforms
from runner.data.core.setting_checks import check_choice
from runner.data.growing.settings import Growth
from runner.data.read.collate import build_schema, collate
from runner.data.read.decode import BlockReader
from runner.data.read.index import build_block_index
from runner.data.read.last_batch import drop_ids, pad_batch
from runner.data.read.prefetch import prefetch_in_thread
from runner.data.read.seen_items import START, STOP, SeenItems
from runner.data.read.stream import RankSlice, iterate_batch_slices
from runner.errors import DataError, nearest_hint
from runner.parts import internal

BURST_ROWS = 16_384


@internal
class ParquetDataset:
    """Implements `runner.data.core.dataset.Dataset`, the one path from files to batches.

    Args:
        files: of each split.
        columns: to read.
        window_rows: rows that are held in memory and shuffled together; part of the order.
        prefetch: batches that a thread makes in advance, 0 for none; no part of the order.
        workers: windows that as many threads read in advance, 0 for none; no part of the order.
        rest: policy for the last rows of a training epoch, see `runner.data.read.last_batch`.
        transforms_dir: folder with the transforms that were fitted to the train split, if any.
        bad_rows: count and examples of the rows that preparation skipped.
        reachable: split -> metric -> best possible value, for planted data.
        seen_dir: folder with what users have seen, if the rows are made of raw interactions.

    Raises:
        ConfigError: if `rest` is no policy.
        DataError: if a split has no files, or as in `build_block_index`.
    """

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        columns: Columns,
        *,
        window_rows: int = 131_072,
        prefetch: int = 0,
        workers: int = 0,
        rest: str = "short",
        transforms_dir: Path | None = None,
        bad_rows: Mapping[str, Any] | None = None,
        reachable: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        seen_dir: Path | None = None,
    ) -> None:
        for split, paths in files.items():
            if not paths:
                raise DataError(f"the {split} split has no files")
        check_choice("rest", rest, LAST_BATCH_POLICIES)
        self.columns = columns
        self.rest = rest
        self.bad_rows = bad_rows or {"count": 0, "examples": []}
        self._transforms_dir, self._seen_dir = transforms_dir, seen_dir
        self.schema = build_schema(columns)
        self.growth: Mapping[str, Growth] = columns.growth
        self.reachable = reachable
        self._indexes = {}
        for split, paths in files.items():
            with _cache_advice(paths[0].parent):
                self._indexes[split] = build_block_index(paths, columns)
        self.num_rows: Mapping[str, int] = {
            split: index.num_rows for split, index in self._indexes.items()
        }
        self._keys = [feature.name for feature in self.schema.sparse]
        self._window_rows = window_rows
        self._sequence_keys = [feature.name for feature in self.schema.sequences]
        self._prefetch = prefetch
        self._workers = workers

    def save_fitted_transforms(self, folder: Path) -> None:
        """Save the fitted transforms into a run's folder; see `with_fitted_transforms`."""
        if self._transforms_dir is not None:
            copy_fitted_transforms(self._transforms_dir, folder)

    def read_carried_columns(self, split: str, start: int, stop: int) -> pa.Table:
        """Return the carried columns of rows [start, stop) of a split, in file order."""
        names = [name.removeprefix(CARRIED_PREFIX) for name in self.columns.carried]
        table = self.read_columns(split, self.columns.carried, start, stop)
        return table.rename_columns(names)

    def seen_items(self, split: str) -> SeenItems | None:
        """Return what the users of a split have seen; see `Dataset.seen_items`."""
        if self._seen_dir is None or split == "train":
            return None
        slices = self.read_columns(split, (START, STOP), 0, self.num_rows[split])
        start_N, stop_N = (slices[name].to_numpy() for name in (START, STOP))
        return SeenItems(self._seen_dir, split, start_N, stop_N)

    def read_columns(self, split: str, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Return columns of rows [start, stop) of a split as they are stored, in file order."""
        index = self._indexes[split]
        blocks = np.flatnonzero((index.start_N < stop) & (index.start_N + index.rows_N > start))
        if not len(blocks) or not names:
            return pa.table({name: [] for name in names})
        reader = BlockReader(index, self.columns)
        table = reader.read_table(blocks, names)
        reader.close()
        return table.slice(start - int(index.start_N[blocks[0]]), stop - start)

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

        A rank without a row in the last batch gets a row of weight 0.

        Raises:
            DataError: if there is no such split, or `start` lies outside it.
        """
        if split not in self._indexes:
            raise DataError(
                f"no {split!r} split; there are {', '.join(self._indexes)}"
                f"{nearest_hint(split, self._indexes)}"
            )
        total = self.num_rows[split]
        if not 0 <= start.offset < total:
            raise DataError(
                f"position {start.offset} is outside the {total} rows of {split!r}: "
                "the data has changed"
            )
        if seed is None or split != "train":
            end, padded_size = total, 0
        else:
            end = epoch_end_offset(self, start.offset, batch_size * world_size)
            if end == start.offset:
                return iter(())
            padded_size = batch_size if self.rest == "pad" else 0
        rank_slice = RankSlice(start.offset, end, batch_size, rank, world_size)
        batches = self._batches(split, rank_slice, seed, start.epoch, padded_size)
        if self._prefetch:
            return prefetch_in_thread(batches, self._prefetch)
        return iterate_in_bursts(batches, BURST_ROWS // batch_size)

    def _batches(
        self, split: str, rank_slice: RankSlice, seed: int | None, epoch: int, padded_size: int
    ) -> Iterator[Batch]:
        """Yield a rank's batches; the last one is padded to `padded_size` rows unless that is 0."""
        batch_slices = iterate_batch_slices(
            self._indexes[split],
            self.columns,
            rank_slice,
            seed=seed,
            epoch=epoch,
            window_rows=self._window_rows,
            workers=self._workers,
        )
        with _cache_advice(self._indexes[split].files[0].parent):
            for batch_slice in batch_slices:
                end = batch_slice.end_offset
                is_last = end == rank_slice.total
                cursor = DataPosition(epoch + 1, 0) if is_last else DataPosition(epoch, end)
                batch = collate(batch_slice, self._keys, cursor, self._sequence_keys)
                if is_last:
                    batch = drop_ids(batch) if batch_slice.is_padding else batch
                    batch = pad_batch(batch, padded_size)
                yield batch


@contextmanager
def _cache_advice(folder: Path) -> Iterator[None]:
    """Add to an error about prepared data what helps against it.

    Raises:
        DataError: that was raised inside.
    """
    try:
        yield
    except DataError as error:
        if not folder.is_relative_to(cache_root()):
            raise
        raise DataError(
            f"{error}; prepared data is made again after {folder} is deleted"
        ) from error


def iterate_in_bursts(batches: Iterator[Batch], burst_size: int) -> Iterator[Batch]:
    """Yield the same batches, of which each `burst_size` are made one right after another.

    An update drives this module's code and arrays out of the processor's caches, so that a batch
    made alone costs twice as much as one in a burst. Memory: `burst_size` batches.
    """
    while burst := list(itertools.islice(batches, max(1, burst_size))):
        yield from burst
