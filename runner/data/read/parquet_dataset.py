"""A dataset of declared columns in Parquet or prepared Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.batch import Batch
from runner.data.core.columns import CARRIED_PREFIX, Columns
from runner.data.core.fitted import copy_fitted_transforms
from runner.data.read.block_dataset import BlockDataset
from runner.data.read.decode import BlockReader
from runner.data.read.index import build_block_index
from runner.data.read.seen_items import START, STOP, SeenItems
from runner.data.read.stream import FileWindows, WindowSource
from runner.errors import DataError
from runner.machine.cache_folder import cache_root
from runner.parts import internal


@internal
class ParquetDataset(BlockDataset):
    """Implements `runner.data.core.dataset.Dataset`, the one path from files to batches.

    Args:
        transforms_dir: folder with the transforms fitted to the train split, if any.
        value_names: names values as `Dataset.name_values` does; None: they have no names.
        seen_dir: folder with the items that users have seen, if rows are made of interactions.
        settings: the other arguments of `BlockDataset`.

    Raises:
        ConfigError: if `rest` is not a policy.
        DataError: if a split has no files, or as in `build_block_index`.
    """

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        columns: Columns,
        *,
        transforms_dir: Path | None = None,
        value_names: Callable[[str, Sequence[int]], Mapping[int, str]] | None = None,
        seen_dir: Path | None = None,
        **settings: Any,
    ) -> None:
        for split, paths in files.items():
            if not paths:
                raise DataError(f"the {split} split has no files; give it one, or leave it out")
        self.transforms_dir, self._seen_dir = transforms_dir, seen_dir
        self._value_names = value_names
        self.own_table: Any = None  # the recipe of a table that no configuration describes
        indexes = {}
        for split, paths in files.items():
            with _cache_advice(paths[0].parent):
                indexes[split] = build_block_index(paths, columns)
        super().__init__(indexes, columns, **settings)

    def save_fitted_transforms(self, folder: Path) -> None:
        """Save the fitted transforms into a run's folder; see `with_fitted_transforms`."""
        if self.transforms_dir is not None:
            own = self.own_table
            table = None if own is None else {"schema": own.schema_content}
            copy_fitted_transforms(self.transforms_dir, folder, table)

    def name_values(self, column: str, values: Sequence[int]) -> Mapping[int, str]:
        """Return names of values of a column; see `Dataset.name_values`."""
        return {} if self._value_names is None else self._value_names(column, values)

    def read_carried_columns(self, split: str, start: int, stop: int) -> pa.Table:
        """Return the carried columns of rows [start, stop) of a split, in file order."""
        names = [name.removeprefix(CARRIED_PREFIX) for name in self.columns.carried]
        return self.read_columns(split, self.columns.carried, start, stop).rename_columns(names)

    def seen_items(self, split: str) -> SeenItems | None:
        """Return the items that the users of a split have seen; see `Dataset.seen_items`."""
        if self._seen_dir is None or split == "train":
            return None
        slices = self.read_columns(split, (START, STOP), 0, self.num_rows[split])
        start_N, stop_N = (slices[name].to_numpy() for name in (START, STOP))
        return SeenItems(self._seen_dir, split, start_N, stop_N)

    def read_columns(self, split: str, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Return columns of rows [start, stop) of a split as they are stored, in file order."""
        index = self.indexes[split]
        blocks = np.flatnonzero((index.start_N < stop) & (index.start_N + index.rows_N > start))
        if not len(blocks) or not names:
            return pa.table({name: [] for name in names})
        with closing(BlockReader(index, self.columns)) as reader:
            table = reader.read_table(blocks, names)
        return table.slice(start - int(index.start_N[blocks[0]]), stop - start)

    def source_opener(self, split: str) -> Callable[[], WindowSource]:
        return partial(FileWindows, self.indexes[split], self.columns)

    def _batches(self, split: str, *order: Any) -> Iterator[Batch]:
        with _cache_advice(self.indexes[split].files[0].parent):
            yield from super()._batches(split, *order)


@contextmanager
def _cache_advice(folder: Path) -> Iterator[None]:
    """Add the remedy to an error about prepared data.

    Raises:
        DataError: raised in the block.
    """
    try:
        yield
    except DataError as error:
        if not folder.is_relative_to(cache_root()):
            raise
        raise DataError(
            f"{error}; prepared data is made again after {folder} is deleted"
        ) from error
