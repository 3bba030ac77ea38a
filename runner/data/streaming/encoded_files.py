"""Files of a stream with columns encoded like a table's: vocabularies, crosses, texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from runner.data.files.file_columns import check_same_schema
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import read_parquet_chunks, read_parquet_schema
from runner.data.prepare.outline import ANY_SIZE
from runner.data.read.decode import InMemoryReader, Rows
from runner.data.read.index import BlockIndex
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
    left, types = num_rows, dict[str, str]()
    for path in paths if needs_fitting(declared) else ():
        file = DataFile(str(path))
        _check_types(declared, file)
        types = types or id_types(declared, read_parquet_schema(file)[0])
        for chunk in read_parquet_chunks(file, fitter.columns_to_read(), skip_bad_rows=False):
            fitter.update(chunk, {"train": np.arange(chunk.num_rows) < left})
            left -= chunk.num_rows
            if left <= 0:
                return replace(fitter.compute(), id_types=types)
    if left == num_rows and needs_fitting(declared):
        raise ConfigError(
            "dataset.path: has no file yet, to whose first rows vocabularies and statistics are "
            "fitted (dataset.fit_rows); dataset.learnt=RUN/data takes those of a run"
        )
    return replace(fitter.compute(), id_types=types)


def _check_types(declared: Declared, file: DataFile) -> list[int]:
    """Check the columns of a file, and return the rows of each of its row groups.

    Raises:
        DataError: for a column that is missing or of a wrong type.
    """
    schema, counts = read_parquet_schema(file)
    check_same_schema({str(file): schema}, list(declared.columns))
    check_column_types(declared, schema, str(file))
    return counts


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
        return BlockIndex.of_file((path,), _check_types(self.declared, DataFile(str(path))))

    def read(self, path: Path, row: int, first_row: int) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of a file from a row on, with the number in the file of the first one.

        Args:
            path: the file.
            row: number in the file of the first row.
            first_row: its number in the stream.

        Raises:
            DataError: for the first bad row.
        """
        begin = 0
        file = DataFile(str(path))
        for chunk in read_parquet_chunks(file, list(self.declared.columns), skip_bad_rows=False):
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
