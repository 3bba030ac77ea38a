"""The blocks of a split: which rows are where, from the footers of its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.core.blocks import open_blocks
from runner.data.core.columns import Columns, check_columns
from runner.errors import DataError


@dataclass(frozen=True)
class BlockIndex:
    """N blocks (row groups, record batches) in file order; the files are sorted by name."""

    files: tuple[Path, ...]
    file_N: np.ndarray  # number of the block's file
    group_N: np.ndarray  # number of the block in its file
    start_N: np.ndarray  # number in the split of the block's first row
    rows_N: np.ndarray  # rows of the block, at least 1

    @property
    def num_rows(self) -> int:
        return int(self.rows_N.sum())

    @property
    def num_blocks(self) -> int:
        return len(self.rows_N)


def build_block_index(files: Sequence[Path], columns: Columns) -> BlockIndex:
    """Reads every footer and checks the declared columns before anything else is read.

    Raises: DataError naming the file: unreadable, without rows, missing or mistyped columns, or
    types that differ from those of the first file.
    """
    files = tuple(sorted(files, key=lambda path: (path.name, str(path))))
    file_n, group_n, rows_n = [], [], []
    first: pa.Schema | None = None
    for number, path in enumerate(files):
        with closing(open_blocks(path)) as opened:
            found, counts = opened.schema, opened.rows_per_block
        check_columns(columns, found, str(path))
        first = first or found
        _check_same_types(columns, first, found, files[0], path)
        if not any(counts):
            raise DataError(f"{path}: has no rows")
        for group, rows in enumerate(counts):
            if rows:
                file_n.append(number)
                group_n.append(group)
                rows_n.append(rows)
    rows_N = np.array(rows_n, np.int64)
    start_N = np.cumsum(rows_N) - rows_N
    return BlockIndex(
        files, np.array(file_n, np.int64), np.array(group_n, np.int64), start_N, rows_N
    )


def _check_same_types(
    columns: Columns, first: pa.Schema, found: pa.Schema, first_path: Path, path: Path
) -> None:
    for name in columns.names:
        was, is_ = first.field(name).type, found.field(name).type
        if was != is_:
            raise DataError(f"{path}: column {name!r} has type {is_}, but {was} in {first_path}")
