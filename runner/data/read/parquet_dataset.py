"""A dataset of declared columns in Parquet files: the one path from files to batches."""

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
from runner.data.core.cache import cache_root
from runner.data.core.columns import CARRIED_PREFIX, Columns
from runner.data.core.dataset import START_POSITION, epoch_end_offset
from runner.data.core.fitted import copy_fitted_transforms
from runner.data.core.setting_checks import LAST_BATCH_POLICIES, check_choice
from runner.data.read.collate import build_schema, collate
from runner.data.read.decode import BlockReader
from runner.data.read.index import build_block_index
from runner.data.read.last_batch import drop_ids, pad_batch
from runner.data.read.prefetch import prefetch_in_thread
from runner.data.read.stream import RankSlice, iterate_batch_slices
from runner.errors import DataError, nearest_hint

BURST_ROWS = 16_384


class ParquetDataset:
    """Implements `runner.data.core.dataset.Dataset`.

    Args: files of each split; window_rows: rows that are shuffled together and held in memory, part
    of the order; prefetch: batches made ahead by a thread, workers: windows read ahead by as many
    threads, 0 for none, no part of the order; rest: what becomes of the last rows of a training
    epoch, see `runner.data.read.last_batch`.
    Raises: DataError as `build_index` does.
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
    ) -> None:
        for split, paths in files.items():
            if not paths:
                raise DataError(f"the {split} split has no files")
        check_choice("rest", rest, LAST_BATCH_POLICIES)
        self.columns = columns
        self.rest = rest
        self.bad_rows = bad_rows or {"count": 0, "examples": []}
        self._learnt_in = transforms_dir
        self.schema = build_schema(columns)
        self.reachable = reachable
        self._indexes = {}
        for split, paths in files.items():
            with _advice_on_cache(paths[0].parent):
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
        """Keeps what the transforms learnt in a run's folder; `with_learnt` hands it back."""
        if self._learnt_in is not None:
            copy_fitted_transforms(self._learnt_in, folder)

    def read_carried_columns(self, split: str, start: int, stop: int) -> pa.Table:
        """The carried columns of rows [start, stop) of a split, in the order of its files."""
        names = [name.removeprefix(CARRIED_PREFIX) for name in self.columns.carried]
        index = self._indexes[split]
        blocks = np.flatnonzero((index.start_N < stop) & (index.start_N + index.rows_N > start))
        if not len(blocks) or not names:
            return pa.table({name: [] for name in names})
        reader = BlockReader(index, self.columns)
        table = reader.read_table(blocks, self.columns.carried)
        reader.close()
        first = int(index.start_N[blocks[0]])
        return table.rename_columns(names).slice(start - first, stop - start)

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
        """See `Dataset.batches`. A rank without a row in the last batch gets one of weight 0."""
        if split not in self._indexes:
            raise DataError(
                f"no {split!r} split; there are {', '.join(self._indexes)}"
                f"{nearest_hint(split, self._indexes)}"
            )
        total = self.num_rows[split]
        if not 0 <= start.offset < total:
            raise DataError(
                f"position {start.offset} is outside the {total} rows of {split!r}: "
                "the data is not what it was"
            )
        if seed is None or split != "train":
            share, size = RankSlice(start.offset, total, batch_size, rank, world_size), 0
        else:
            end = epoch_end_offset(self, start.offset, batch_size * world_size)
            if end == start.offset:
                return iter(())
            share = RankSlice(start.offset, end, batch_size, rank, world_size)
            size = batch_size if self.rest == "pad" else 0
        batches = self._batches(split, share, seed, start.epoch, size)
        if self._prefetch:
            return prefetch_in_thread(batches, self._prefetch)
        return iterate_in_bursts(batches, BURST_ROWS // batch_size)

    def _batches(
        self, split: str, share: RankSlice, seed: int | None, epoch: int, size: int
    ) -> Iterator[Batch]:
        """size: of every batch, padded if need be; 0: the last one is shorter."""
        found = iterate_batch_slices(
            self._indexes[split],
            self.columns,
            share,
            seed=seed,
            epoch=epoch,
            window_rows=self._window_rows,
            workers=self._workers,
        )
        with _advice_on_cache(self._indexes[split].files[0].parent):
            for piece in found:
                at_end = piece.end_offset == share.total
                cursor = (
                    DataPosition(epoch + 1, 0) if at_end else DataPosition(epoch, piece.end_offset)
                )
                batch = collate(piece, self._keys, cursor, self._sequence_keys)
                if at_end:
                    batch = pad_batch(drop_ids(batch) if piece.is_padding else batch, size)
                yield batch


@contextmanager
def _advice_on_cache(folder: Path) -> Iterator[None]:
    """An error of prepared data says what helps."""
    try:
        yield
    except DataError as error:
        if not folder.is_relative_to(cache_root()):
            raise
        raise DataError(f"{error}; prepared data is made again once {folder} is gone") from error


def iterate_in_bursts(batches: Iterator[Batch], burst_size: int) -> Iterator[Batch]:
    """The same batches, `burst_size` made one right after another.

    An update drives our code and tables out of the processor's caches, so that a single batch costs
    twice what it costs in a row. Memory: `burst_size` batches.
    """
    while made := list(itertools.islice(batches, max(1, burst_size))):
        yield from made
