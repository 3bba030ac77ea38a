"""The index of a split's blocks: the rows of each one, from the footers of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """N blocks (row groups or record batches) in file order; the files are sorted by name."""

    files: tuple[Path, ...]
    file_N: np.ndarray  # number of the block's file
    group_N: np.ndarray  # number of the block in its file
    start_N: np.ndarray  # number in the split of the block's first row
    rows_N: np.ndarray  # rows of the block, at least 1
    footers: tuple[int, ...] = ()  # `BlockFile.footer_hash` of each file; empty: unknown

    @classmethod
    def of_file(
        cls, files: tuple[Path, ...], counts: Sequence[int], first_row: int = 0
    ) -> BlockIndex:
        """Return the blocks of one file, with the given numbers of rows.

        Args:
            files: this file; empty: only a server knows it.
            counts: the rows of each block.
            first_row: number in the split of the first row.
        """
        rows_N = np.array(counts, np.int64)
        number_N = np.arange(len(rows_N))
        start_N = first_row + np.cumsum(rows_N) - rows_N
        return cls(files, 0 * number_N, number_N, start_N, rows_N)

    @property
    def num_rows(self) -> int:
        return int(self.rows_N.sum())

    @property
    def num_blocks(self) -> int:
        return len(self.rows_N)


def build_block_index(
    files: Sequence[Path], columns: Columns, as_read: Callable[[pa.Schema], pa.Schema] = lambda s: s
) -> BlockIndex:
    """Read every footer, and check the declared columns before other data is read.

    Args:
        as_read: returns the types that the columns of a file have when they are read.

    Raises:
        DataError: naming a file that is unreadable, lacks a column, or has one of a wrong type or
            of another type than in the first file; and the first file, if none has rows.
    """
    files = tuple(sorted(files, key=lambda path: (path.name, str(path))))
    blocks: list[tuple[int, int, int]] = []  # number of the file, of the block in it, and its rows
    first, first_path, footers = None, Path(), []
    for number, path in enumerate(files):
        with closing(open_blocks(path)) as file:
            schema, counts = as_read(file.schema), file.rows_per_block
            footers.append(file.footer_hash)
        if not any(counts):  # an empty file, as distributed writers produce them
            continue
        check_columns(columns, schema, str(path))
        first, first_path = (first, first_path) if first else (schema, path)
        for name in columns.names:
            expected, type_ = first.field(name).type, schema.field(name).type
            if type_ != expected:
                raise DataError(
                    f"{path}: column {name!r} has type {type_}, but {expected} in {first_path}"
                )
        blocks += [(number, group, rows) for group, rows in enumerate(counts) if rows]
    if files and not blocks:
        raise DataError(f"{files[0]}: has no rows")
    file_N, group_N, rows_N = np.array(blocks, np.int64).reshape(-1, 3).T.copy()
    return BlockIndex(files, file_N, group_N, np.cumsum(rows_N) - rows_N, rows_N, tuple(footers))
