"""Reads a user's files unchanged: their types, and rows in chunks that know their position."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from runner.data.core.blocks import READ_ERRORS, read_footer
from runner.data.files.file_list import SUFFIXES, DataFile
from runner.errors import DataError, first_line

CHUNK_ROWS = 1 << 16
_NESTED = {b"nested": b"true"}  # of a field of a flattened schema
_UUID = {b"uuid": b"true"}  # of an unpacked one


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of one file. `table` is None if they could not be read."""

    file: DataFile
    row_group: int | None  # None: a text file, whose rows are lines
    first_row: int  # number of the first row in the row group, or of its line
    num_rows: int
    table: pa.Table | None
    problem: str = ""  # why there is no table
    # column -> texts [R] that do not fit its type, null in all other rows
    invalid_values: Mapping[str, pa.Array] = field(default_factory=dict)
    malformed_lines: tuple[tuple[int, str], ...] = ()  # line and problem; they are not rows
    part_name: str = "row group"  # the term for parts of the file; empty: it has none
    # column -> bool [R], rows that are bad because of its value, and row -> the problem
    rejected: Mapping[str, tuple[np.ndarray, Callable[[int], str]]] = field(default_factory=dict)
    # of a text file: returns the line of each row; None: rows are consecutive lines
    find_lines: Callable[[], Sequence[int]] | None = None

    @property
    def line_problems(self) -> list[str]:
        """The problem of each malformed line, with its position."""
        return [f"{self.file}: line {line}: {text}" for line, text in self.malformed_lines]

    def describe_row(self, row: int) -> str:
        """Return the position of a row: its file and line, or its file, row group and row."""
        if self.row_group is None:
            line = self.find_lines()[row] if self.find_lines else self.first_row + row
            return f"{self.file}: line {line}"
        part = f"{self.part_name} {self.row_group}, " if self.part_name else ""
        return f"{self.file}: {part}row {self.first_row + row}"


@contextmanager
def open_parquet_file(
    file: DataFile, dictionary_columns: Sequence[str] = ()
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for the block; reading it verifies page checksums.

    Raises:
        DataError: naming a file that is missing, cut off or not Parquet.
    """
    with file.open() as handle:  # a ParquetFile does not close it
        try:
            opened = pq.ParquetFile(
                handle,
                pre_buffer=file.remote is not None,
                page_checksum_verification=True,
                read_dictionary=list(dictionary_columns),
            )
        except READ_ERRORS as error:
            formats = [f for f, endings in SUFFIXES.items() if str(file).lower().endswith(endings)]
            is_other = formats and "parquet" not in formats
            hint = f"; by its name it is one for dataset={formats[0]}" if is_other else ""
            raise DataError(
                f"{file}: not a readable Parquet file ({first_line(error)}){hint}"
            ) from error
        yield opened


def read_parquet_schema(file: DataFile) -> tuple[pa.Schema, list[int]]:
    """Return the column types, and the number of rows of every row group.

    Raises:
        DataError: naming a file that cannot be read.
    """
    with open_parquet_file(file) as opened:
        schema, counts = read_footer(opened, str(file))
        return flatten_schema(schema), counts


def read_parquet_chunks(
    file: DataFile,
    columns: Sequence[str],
    *,
    skip_bad_rows: bool,
    row_groups: Container[int] | None = None,
) -> Iterator[RowChunk]:
    """Yield the rows of a Parquet file.

    Args:
        row_groups: the ones to read; None: all.
        skip_bad_rows: an unreadable row group gives a chunk without a table instead of an error.

    Raises:
        DataError: naming the file, and the row group that cannot be read.
    """
    schema, counts = read_parquet_schema(file)
    texts = [n for n in columns if is_text(schema.field(n).type) and not is_nested(schema, n)]
    with open_parquet_file(file, texts) as opened:
        for group, count in enumerate(counts):
            if row_groups is not None and group not in row_groups:
                continue
            num_read = 0
            try:
                for batch in opened.iter_batches(
                    CHUNK_ROWS, row_groups=[group], columns=list(columns), use_threads=False
                ):
                    table = pa.Table.from_batches([batch])
                    for column in table.columns:
                        _check_dictionary_indices(column)
                    table = unpack_columns(table).select(list(columns))
                    yield RowChunk(file, group, num_read, table.num_rows, table)
                    num_read += table.num_rows
                _check_num_rows(num_read, count)
            except READ_ERRORS as error:
                problem = f"{file}: row group {group}: {first_line(error)}"
                if not skip_bad_rows or num_read >= count:
                    raise DataError(problem) from error
                yield RowChunk(file, group, num_read, count - num_read, None, problem)


def _check_num_rows(num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise pa.ArrowInvalid(f"{num_rows} rows, not {expected} as the footer says")


def _check_dictionary_indices(column: pa.ChunkedArray) -> None:
    """Check that each index has a dictionary entry, which Arrow does not verify.

    Raises:
        ArrowInvalid: for an index outside the dictionary.
    """
    for chunk in column.chunks:
        if pt.is_dictionary(chunk.type):
            ends = pc.min_max(chunk.indices)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is not None and not 0 <= low <= high < len(chunk.dictionary):
                raise pa.ArrowInvalid(f"entry {high} of a dictionary of {len(chunk.dictionary)}")


def flatten_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns that `flatten_structs` makes; `is_nested` detects those from structs."""
    while any(pt.is_struct(field.type) for field in schema):
        schema = pa.schema([part for field in schema for part in _flatten_field(field)])
    return schema


def _flatten_field(field: pa.Field) -> list[pa.Field]:
    if not pt.is_struct(field.type):
        return [field]
    return [f.with_metadata(_NESTED) for f in field.flatten()]


def is_nested(schema: pa.Schema, name: str) -> bool:
    """Return whether a column of a flattened schema is inside a struct in the file."""
    return bool(schema.field(name).metadata == _NESTED)


def flatten_structs(table: pa.Table) -> pa.Table:
    """Make a column of each field of a struct, such as `user.id`; lists of structs stay."""
    while any(pt.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def unpacked_type(type_: pa.DataType) -> pa.DataType:
    """Return the plain type of values, without dictionaries, views and extensions such as UUID."""
    if pt.is_dictionary(type_):
        return unpacked_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return unpacked_type(type_.storage_type)
    if pt.is_string_view(type_):
        return pa.string()
    is_bytes = pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_)
    return pa.binary() if is_bytes else type_


def unpack_columns(table: pa.Table) -> pa.Table:
    """Cast columns to their plain types; dictionaries of texts stay, since they hash fast."""
    table = flatten_structs(table)
    for index, column in enumerate(table.schema):
        plain = unpacked_type(column.type)
        if pt.is_dictionary(column.type) and pt.is_string_view(column.type.value_type):
            chunks = [  # Arrow cannot cast views within dictionaries
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(plain))
                for chunk in table[column.name].chunks
            ]
            type_ = pa.dictionary(column.type.index_type, plain)
            table = table.set_column(index, column.name, pa.chunked_array(chunks, type_))
        elif plain != column.type and not (pt.is_dictionary(column.type) and is_text(plain)):
            is_uuid = getattr(column.type, "extension_name", "") == "arrow.uuid"
            field = pa.field(column.name, plain, metadata=_UUID if is_uuid else None)
            table = table.set_column(index, field, _cast(table[column.name], plain))
    return table


def restore_uuids(table: pa.Table) -> pa.Table:
    """Return plain columns, with those of UUIDs in the type of their file."""
    for index, column in enumerate(table.schema):
        if column.metadata == _UUID:
            chunks = table[column.name].cast(pa.binary(16)).chunks
            uuids = [pa.ExtensionArray.from_storage(pa.uuid(), chunk) for chunk in chunks]
            table = table.set_column(index, column.name, pa.chunked_array(uuids, pa.uuid()))
    return table


def read_uuids(table: pa.Table, name: str) -> list[UUID | None] | None:
    """Return the values of a column of UUIDs, converted to plain types or not; None for others."""
    column = table.schema.field(name)
    if column.metadata != _UUID and getattr(column.type, "extension_name", "") != "arrow.uuid":
        return None
    values = _cast(table[name], pa.binary()).to_pylist()
    return [None if value is None else UUID(bytes=value) for value in values]


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """Return the plain values of dictionary columns, whose chunks have different dictionaries."""
    for index, column in enumerate(table.schema):
        if pt.is_dictionary(column.type):
            values = table[column.name].cast(column.type.value_type)
            table = table.set_column(index, column.name, values)
    return table


def single_array(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, without a copy if it has one chunk."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cast(values: pa.ChunkedArray, plain: pa.DataType) -> pa.ChunkedArray:
    if isinstance(values.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type.storage_type)
    return values.cast(plain)


def is_numeric(type_: pa.DataType) -> bool:
    """Return whether values are integers, floats or decimals."""
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_))


def as_texts(values: pa.Array) -> pa.Array:
    r"""Return values as texts; bytes that are not UTF-8 become escapes such as `\xff`."""
    if pt.is_dictionary(values.type):
        return as_texts(values.dictionary).take(values.indices)
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decode = partial(bytes.decode, errors="backslashreplace")
        return pa.array([v if v is None else decode(v) for v in values.to_pylist()], pa.string())


def is_text(type_: pa.DataType) -> bool:
    """Return whether values are texts or bytes, in any of Arrow's layouts."""
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return unpacked_type(type_) in texts
