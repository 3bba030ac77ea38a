"""The blocks of a split: which rows are where, from the footers of its Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.columns import Columns, check_columns
from runner.errors import DataError

# What Arrow raises for damaged files; the last one for names of columns that are no text any more
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class Index:
    """N blocks (row groups) in file order; the files are sorted by name."""

    files: tuple[Path, ...]
    file_N: np.ndarray  # number of the block's file
    group_N: np.ndarray  # number of the row group in its file
    start_N: np.ndarray  # number in the split of the block's first row
    rows_N: np.ndarray  # rows of the block, at least 1

    @property
    def num_rows(self) -> int:
        return int(self.rows_N.sum())

    @property
    def num_blocks(self) -> int:
        return len(self.rows_N)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Raises: DataError naming the file when it is missing, cut or not Parquet."""
    try:
        # No memory map: a file cut while it is read would end the process by SIGBUS.
        return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable Parquet file ({first_line(error)})") from error


def footer(opened: pq.ParquetFile, path: str) -> tuple[pa.Schema, list[int]]:
    """Column types, and the number of rows of every row group.

    Raises: DataError for a footer that contradicts itself, or that is no footer any more.
    """
    try:
        found, metadata = opened.schema_arrow, opened.metadata
        counts = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        _ = found.names  # decodes them
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable Parquet file ({first_line(error)})") from error
    if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
        raise DataError(
            f"{path}: damaged footer: {metadata.num_rows} rows, but {sum(counts)} in its row groups"
        )
    return found, counts


def build_index(files: Sequence[Path], columns: Columns) -> Index:
    """Reads every footer and checks the declared columns before anything else is read.

    Raises: DataError naming the file: unreadable, without rows, missing or mistyped columns, or
    types that differ from those of the first file.
    """
    files = tuple(sorted(files, key=lambda path: (path.name, str(path))))
    file_n, group_n, rows_n = [], [], []
    first: pa.Schema | None = None
    for number, path in enumerate(files):
        with open_parquet(path) as opened:
            found, counts = footer(opened, str(path))
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
    return Index(files, np.array(file_n, np.int64), np.array(group_n, np.int64), start_N, rows_N)


def _check_same_types(
    columns: Columns, first: pa.Schema, found: pa.Schema, first_path: Path, path: Path
) -> None:
    for name in columns.names:
        was, is_ = first.field(name).type, found.field(name).type
        if was != is_:
            raise DataError(f"{path}: column {name!r} has type {is_}, but {was} in {first_path}")


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
