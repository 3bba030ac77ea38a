"""A dataset of declared columns in Parquet files: the one path from files to batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from runner.batch import Batch, Cursor
from runner.data.assemble import assemble, schema_of
from runner.data.columns import Columns
from runner.data.dataset import START
from runner.data.index import build_index
from runner.data.prefetch import prefetch
from runner.data.stream import Share, pieces
from runner.errors import DataError, nearest


class ParquetDataset:
    """Implements `runner.data.dataset.Dataset`.

    Args: files of each split; window_rows: rows that are shuffled together and held in memory, part
    of the order; prefetch: batches made ahead by a thread, 0 for none, no part of the order.
    Raises: DataError as `build_index` does.
    """

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        columns: Columns,
        *,
        window_rows: int = 131_072,
        prefetch: int = 0,
        reachable: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        for split, paths in files.items():
            if not paths:
                raise DataError(f"the {split} split has no files")
        self.columns = columns
        self.schema = schema_of(columns)
        self.reachable = reachable
        self._indexes = {split: build_index(paths, columns) for split, paths in files.items()}
        self.num_rows = {split: index.num_rows for split, index in self._indexes.items()}
        self._keys = [feature.name for feature in self.schema.sparse]
        self._window_rows = window_rows
        self._prefetch = prefetch

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int | None = None,
        start: Cursor = START,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """See `Dataset.batches`. A rank without a row in the last batch gets one of weight 0."""
        if split not in self._indexes:
            raise DataError(
                f"no {split!r} split; there are {', '.join(self._indexes)}"
                f"{nearest(split, self._indexes)}"
            )
        total = self.num_rows[split]
        if not 0 <= start.offset < total:
            raise DataError(
                f"position {start.offset} is outside the {total} rows of {split!r}: "
                "the data is not what it was"
            )
        share = Share(start.offset, total, batch_size, rank, world_size)
        return prefetch(self._batches(split, share, seed, start.epoch), self._prefetch)

    def _batches(self, split: str, share: Share, seed: int | None, epoch: int) -> Iterator[Batch]:
        for piece in pieces(
            self._indexes[split],
            self.columns,
            share,
            seed=seed,
            epoch=epoch,
            window_rows=self._window_rows,
        ):
            at_end = piece.end == share.total
            cursor = Cursor(epoch + 1, 0) if at_end else Cursor(epoch, piece.end)
            yield assemble(piece, self._keys, cursor)
