"""Files of a stream with columns encoded like a table's: vocabularies, crosses, texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import check_column_types, id_types, rewritten_columns
from runner.data.columns.encode import encode_chunk
from runner.data.columns.times import TIME_PARTS
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_columns import cast_columns, check_same_schema
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk, read_parquet_chunks, read_parquet_schema
from runner.data.prepare.outline import ANY_SIZE
from runner.data.read.decode import InMemoryReader, Rows
from runner.data.read.index import BlockIndex
from runner.data.streaming.settings import encoded_types, fill_empty_types
from runner.data.tabular.fit import TransformFitter, needs_fitting
from runner.errors import ConfigError, DataError


def encoded_columns(declared: Declared, fitted: FittedTransforms | None = None) -> Columns:
    """Return the columns of encoded rows; without fitted transforms, tables have any size.

    Raises:
        ConfigError: for ids without a declared size, since larger ones may arrive at any time.
    """
    for spec in declared.ids:
        known = ("vocabulary", "bucketise", *TIME_PARTS)
        if spec.num_rows is None and spec.encode not in known:
            raise ConfigError(
                f"dataset.schema: {spec.name}: num_rows is not set; a stream does not end, so "
                "that its largest id is never known"
            )
    fitted = fitted or FittedTransforms(num_rows=defaultdict(lambda: ANY_SIZE))
    return rewritten_columns(declared, fitted, has_weights=False)


def fit_to_first_rows(declared: Declared, paths: Sequence[Path], num_rows: int) -> FittedTransforms:
    """Return the transforms fitted to the first rows of the existing files.

    Raises:
        ConfigError: if there are no rows for it.
        DataError: for a bad row.
    """
    fitter = TransformFitter(declared, split_seed=0, skip_bad_rows=False)
    if not needs_fitting(declared):
        return replace(fitter.compute(), id_types=_first_types(declared, paths))
    rows_left, types = num_rows, dict[str, str]()
    for path in paths:
        file = DataFile(str(path))
        types = fitter.id_types = _check_types(declared, file, types)[1]
        for chunk in _read_chunks(declared, file, fitter.columns_to_read(), types):
            fitter.update(chunk, {"train": np.arange(chunk.num_rows) < rows_left})
            rows_left -= chunk.num_rows
            if rows_left <= 0:
                return replace(fitter.compute(), id_types=types)
    if rows_left == num_rows:
        raise ConfigError(
            "dataset.path: has no file yet, to whose first rows vocabularies and statistics are "
            "fitted (dataset.fit_rows); dataset.learnt=RUN/data takes those of a run"
        )
    return replace(fitter.compute(), id_types=types)


def _first_types(declared: Declared, paths: Sequence[Path]) -> dict[str, str]:
    """Return the types of ids in the first file; none if there is none, or it is not complete."""
    try:
        return _check_types(declared, DataFile(str(paths[0])), {})[1] if paths else {}
    except DataError:  # it is waited for, and what is wrong is told, where its rows are read
        return {}


def _check_types(
    declared: Declared, file: DataFile, known: Mapping[str, str]
) -> tuple[list[int], dict[str, str]]:
    """Check the columns of a file.

    Args:
        known: column of ids -> its type in the files before.

    Returns:
        The rows of each of its row groups, and the types of ids that are known now.

    Raises:
        DataError: for a column that is missing or of a wrong type.
    """
    schema, counts = read_parquet_schema(file)
    check_same_schema({str(file): schema}, list(declared.columns))
    check_column_types(
        declared, fill_empty_types(schema, encoded_types(declared, known)), str(file)
    )
    return counts, id_types(declared, schema) | dict(known)


def _read_chunks(
    declared: Declared, file: DataFile, columns: Sequence[str], known: Mapping[str, str]
) -> Iterator[RowChunk]:
    """Yield the rows of a file; a column without any value has the type of its role."""
    types = encoded_types(declared, known)
    for chunk in read_parquet_chunks(file, columns, skip_bad_rows=False):
        if chunk.table is not None:
            table = cast_columns(chunk.table, fill_empty_types(chunk.table.schema, types))
            chunk = replace(chunk, table=table)
        yield chunk


@dataclass(frozen=True)
class FileEncoder:
    """Reads files with the encoder of tables."""

    declared: Declared
    fitted: FittedTransforms

    @property
    def columns(self) -> Columns:
        return encoded_columns(self.declared, self.fitted)

    def index(self, path: Path) -> BlockIndex:
        """Return the row groups of a file.

        Raises:
            DataError: for a file that cannot be read, or has other columns.
        """
        file, known = DataFile(str(path)), self.fitted.id_types
        counts, self.fitted.id_types = _check_types(self.declared, file, known)
        return BlockIndex.of_file((path,), counts)

    def read(self, path: Path, row: int, first_row: int) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of a file from a row on, with the number in the file of the first one.

        Args:
            row: number in the file of the first row.
            first_row: its number in the stream.

        Raises:
            DataError: for the first bad row.
        """
        begin = 0
        file = DataFile(str(path))
        columns, known = list(self.declared.columns), self.fitted.id_types
        for chunk in _read_chunks(self.declared, file, columns, known):
            end = begin + chunk.num_rows
            if end > row:
                if chunk.table is None:
                    raise DataError(chunk.problem)
                validator = RowValidator.for_chunk(chunk, skip_bad_rows=False)
                table = encode_chunk(chunk, self.declared, self.fitted, validator)
                block = BlockIndex.of_file((path,), [chunk.num_rows], first_row - row + begin)
                first = max(row - begin, 0)
                reader = InMemoryReader(block, self.columns, table)
                yield begin + first, reader.read_rows(np.zeros(1, int), slice(first, end - begin))
            begin = end
