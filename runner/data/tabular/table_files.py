"""The files of a user's own table: their columns, and how their rows are read."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.column_types import (
    check_column_types,
    numbers_in_texts,
    text_file_schema,
)
from runner.data.core.argument_types import check_settings
from runner.data.files.arrow_files import (
    ARROW_FORMATS,
    leave_out_empty,
    read_arrow_chunks,
    read_arrow_schema,
)
from runner.data.files.file_columns import (
    cast_columns,
    check_same_schema,
    find_absent,
    find_misfit,
    promote_types,
)
from runner.data.files.file_list import DataFile
from runner.data.files.partitions import (
    append_partitions,
    columns_in_file,
    is_partition,
    with_partitions,
)
from runner.data.files.read_files import RowChunk, read_parquet_chunks, read_parquet_schema
from runner.data.files.read_text import infer_text_schema, read_text_chunks, unify_guesses
from runner.data.files.text_values import with_points
from runner.data.prepare.engine import Engine
from runner.data.tabular.splits import check_split_type
from runner.data.tabular.table_settings import TEXT_FORMATS, TableSettings
from runner.data.tabular.text_parts import TextIndex, index_texts
from runner.errors import DataError, first_line


@dataclass(frozen=True)
class TableFiles(TableSettings):
    """The settings of a table, and facts about its files."""

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """Path -> the types that the columns of a file are read as.

        Raises:
            DataError: where no file has rows, and as `check_same_schema` does.
        """
        schemas, is_json = self._schemas_in_files, self.format == "jsonl"
        if self.format not in TEXT_FORMATS:
            schemas = promote_types(schemas)
        else:
            schemas, types = unify_guesses(schemas), self.text_types
            if not is_json:  # 12 may be 12.0 in some files, and no double holds all ids
                fields = [field for schema in schemas.values() for field in schema]
                with_point = {f.name for f in fields if pt.is_floating(f.type)}
                as_texts = [n for n in with_point if pt.is_integer(types.get(n, pa.null()))]
                is_point = self.text_format.decimal == "."
                types |= dict.fromkeys(as_texts, pa.string() if is_point else pa.float64())
            declared, split = self.declared_in_files, self.row_split
            schemas = {
                path: text_file_schema(schema, types, declared, split, json_lines=is_json)
                for path, schema in schemas.items()
            }
        if is_json:
            schemas = {path: self._with_absent_keys(schema) for path, schema in schemas.items()}
        without_rows = sorted({str(file) for file in self._all_files} - schemas.keys())
        schemas = {**schemas, **dict.fromkeys(without_rows, next(iter(schemas.values())))}
        schemas = with_partitions(schemas, self._all_files, self.partition_texts)
        check_same_schema(schemas, self.columns_read, self.needed_by)
        return schemas

    def _with_absent_keys(self, schema: pa.Schema) -> pa.Schema:
        """Add optional columns whose key is missing in the first objects of a JSON file."""
        absent = find_absent(self.optional_columns, self.columns_read, schema.names)
        return pa.schema([*schema, *(pa.field(name, self.text_types[name]) for name in absent)])

    @cached_property
    def optional_columns(self) -> frozenset[str]:
        """Columns that may be missing in a file; at least one file of a training has them."""
        names = {name for schema in self._schemas_in_files.values() for name in schema.names}
        return self.declared_in_files.optional_columns & names

    @cached_property
    def _schemas_in_files(self) -> dict[str, pa.Schema]:
        """Path -> the columns of a file as stored; files without rows are skipped.

        Raises:
            DataError: where no file has rows, and for one without rows of an Arrow format.
        """
        schemas = {}
        for file in self._all_files:
            if self.format == "parquet":
                schema, counts = self._footers[str(file)]
                if sum(counts):
                    schemas[str(file)] = schema
            elif file.size():
                schemas[str(file)] = (
                    infer_text_schema(file, self.text_format)
                    if self.format in TEXT_FORMATS
                    else read_arrow_schema(file, self.format)
                )
            elif self.format not in TEXT_FORMATS:
                raise DataError(f"{file}: has no rows")
        schemas = leave_out_empty(schemas, self._all_files, self.format)
        if not schemas:
            raise DataError(f"{self._all_files[0]}: has no rows")
        return schemas

    @property
    def has_cast_columns(self) -> bool:
        """Whether a column that is read has different types in different files."""
        return any(
            self.schemas[path].field(name).type != schema.field(name).type
            for path, schema in self._schemas_in_files.items()
            for name in columns_in_file(self.schemas[path], self.columns_read)
        )

    @cached_property
    def _footers(self) -> dict[str, tuple[pa.Schema, list[int]]]:
        """Path -> the columns of a Parquet file, and the number of rows of each row group."""
        return {str(f): read_parquet_schema(f) for f in self._all_files if self.format == "parquet"}

    @property
    def partition_texts(self) -> Collection[str]:
        """Columns from names of folders that are read as texts whatever their values."""
        return ()

    @cached_property
    def partitions_read(self) -> dict[str, list[dict[str, str | None]]]:
        """Split -> the values from names of folders for each file; empty if none is read."""
        needed = set(self.columns_read)
        partitions = {
            split: [
                {
                    name: value
                    for name, value in file.partitions.items()
                    if name in needed and is_partition(self.schemas[str(file)], name)
                }
                for file in files
            ]
            for split, files in self.files.items()
        }
        return partitions if any(any(values) for values in partitions.values()) else {}

    def needed_by(self, column: str) -> str:
        """Return what requires a column, for messages."""
        return f"{self.schema} declares" if isinstance(self.schema, str | Path) else ""

    @cached_property
    def _texts(self) -> dict[str, TextIndex]:
        """Path -> the blocks of a text file that is divided into parts."""
        return {}

    def check(self) -> None:
        check_settings(self)
        first = next(iter(self.schemas))
        check_column_types(self.declared_in_files, self.schemas[first], first)
        if self._split_setting is not None:
            file = next(file for file in self._all_files if str(file) == first)
            chunks = partial(self.read_chunks, file)
            check_split_type(self.row_split, self.schemas[first], first, chunks)

    @cached_property
    def rows_per_group(self) -> dict[str, list[int]]:
        """Path -> rows of every row group; empty but for Parquet files."""
        return {path: counts for path, (_, counts) in self._footers.items()}

    def num_rows_estimate(self) -> int:
        """Return the number of rows: exact for Parquet, estimated from sizes for text files."""
        files = [file for split_files in self.files_prepared.values() for file in split_files]
        if self.format == "parquet":
            return sum(sum(self.rows_per_group[str(file)]) for file in files)
        return sum(file.size() // 100 for file in files)

    def find_parts_of_texts(self, work_folder: Path, engine: Engine) -> None:
        """Find the parts of large text files, if several workers share them; see `index_texts`."""
        if self.format in TEXT_FORMATS:
            self._texts.update(index_texts(self, self.text_format, work_folder, engine))

    def rows_of_groups(self, file: DataFile) -> list[int] | None:
        """Return the number of rows of each row group or text block; None for a single part."""
        if index := self._texts.get(str(file)):
            return index.num_rows
        return self.rows_per_group[str(file)] if self.format == "parquet" else None

    def read_chunks(
        self, file: DataFile, columns: list[str], row_groups: Container[int] | None = None
    ) -> Iterator[RowChunk]:
        """Yield the rows of a file, the same ones whatever the columns, see `RewritableTable`.

        Without columns, the chunks still have their number of rows.

        Args:
            row_groups: those of a Parquet file, or the blocks of a text file, that are read; None:
                the whole file.
        """
        schema = self.schemas[str(file)]
        if str(file) not in self._schemas_in_files:
            return
        for chunk in self._read_file(file, columns_in_file(schema, columns), row_groups):
            if chunk.table is not None:
                table = append_partitions(self._cast(chunk, schema), file, schema, columns)
                chunk = replace(chunk, table=table)
            yield chunk

    def _cast(self, chunk: RowChunk, schema: pa.Schema) -> pa.Table:
        """Return the rows of a chunk cast from the types of its file to those of all files.

        Raises:
            DataError: naming the column and the value that the type of all files cannot hold.
        """
        assert chunk.table is not None
        if self.format in TEXT_FORMATS:
            names = numbers_in_texts(self.declared) if self.text_format.decimal == "," else ()
            return with_points(chunk.table, names)
        try:
            return cast_columns(chunk.table, schema)
        except pa.ArrowInvalid:
            row, error = find_misfit(chunk.table, schema)
            raise DataError(f"{chunk.describe_row(row)}: {first_line(error)}") from error

    def _read_file(
        self, file: DataFile, columns: list[str], row_groups: Container[int] | None
    ) -> Iterator[RowChunk]:
        if self.format == "parquet":
            skips = self.skips_bad_rows
            return read_parquet_chunks(file, columns, skip_bad_rows=skips, row_groups=row_groups)
        if self.format in ARROW_FORMATS:
            return read_arrow_chunks(file, self.format, columns)
        if self.format == "jsonl":  # a value of another type makes its line malformed
            columns = columns_in_file(self.schemas[str(file)], self.columns_read)
        file_schema = self.schemas[str(file)]
        types = {name: file_schema.field(name).type for name in columns}
        return read_text_chunks(
            file,
            types,
            self.text_format,
            skip_bad_rows=self.skips_bad_rows,
            blocks=None if row_groups is None else self._texts[str(file)].select(row_groups),
        )
