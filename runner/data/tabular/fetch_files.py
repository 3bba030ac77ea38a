"""Copies Parquet files of object stores and servers that need no rewriting to be read.

The copies have the same row groups, so that the order of examples is that of local files; of the
columns they have those that are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.core.blocks import READ_ERRORS
from runner.data.tabular.file_list import DataFile
from runner.data.tabular.read_files import open_parquet_file
from runner.errors import DataError, first_line


def fetch_files(
    files: Mapping[str, Sequence[DataFile]],
    columns: Sequence[str],
    folder: Path,
    advance: Callable[[int], None],
) -> dict[str, list[str]]:
    """Copy columns of files into a folder, and return the names of every split's copies.

    Args:
        files: Parquet files by split.
        columns: names of those that are copied.
        folder: where the copies are written.
        advance: is called with numbers of rows as they are done.

    Raises:
        DataError: naming the file, and the row group that cannot be read.
    """
    names: dict[str, list[str]] = {}
    for split, own in files.items():
        # in the order of `own`, since files are read in the order of their names
        names[split] = [f"{split}-{number:05d}.parquet" for number in range(len(own))]
        for name, file in zip(names[split], own):
            _fetch(file, columns, folder / name, advance)
    return names


def _fetch(
    file: DataFile, columns: Sequence[str], copy: Path, advance: Callable[[int], None]
) -> None:
    with open_parquet_file(file) as opened:
        schema = pa.schema([opened.schema_arrow.field(name) for name in columns])
        with pq.ParquetWriter(copy, schema, write_page_checksum=True) as writer:
            for group in range(opened.num_row_groups):
                try:
                    rows = opened.read_row_group(group, columns=list(columns), use_threads=False)
                except READ_ERRORS as error:
                    raise DataError(f"{file}: row group {group}: {first_line(error)}") from error
                if rows.num_rows:
                    writer.write_table(rows.select(list(columns)), row_group_size=rows.num_rows)
                advance(rows.num_rows)
