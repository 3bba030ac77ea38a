"""Reads a user's files as they are: their types, and their rows in chunks that know their place."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from runner.data.core.blocks import READ_ERRORS, read_footer
from runner.data.tabular.file_list import SUFFIXES, DataFile
from runner.data.tabular.partitions import is_partition
from runner.errors import DataError, first_line, nearest_hint

CHUNK_ROWS = 1 << 16
_NESTED = {b"nested": b"true"}  # of a field of a flat schema
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
    # column -> texts [R] that are not of its type, missing in all other rows
    invalid_values: Mapping[str, pa.Array] = field(default_factory=dict)
    malformed_lines: tuple[tuple[int, str], ...] = ()  # line and problem; they make no row
    part_name: str = "row group"  # what parts of the file are called; empty: it has none
    # column -> bool [R], rows that are bad for what it holds, and row -> what is wrong there
    rejected: Mapping[str, tuple[np.ndarray, Callable[[int], str]]] = field(default_factory=dict)
    # of a text file: finds the line of each row, once; None: they follow one another
    find_lines: Callable[[], Sequence[int]] | None = None

    def describe_row(self, row: int) -> str:
        """Return where a row is: its file and line, or its file, row group and row."""
        if self.row_group is None:
            line = self.find_lines()[row] if self.find_lines else self.first_row + row
            return f"{self.file}: line {line}"
        part = f"{self.part_name} {self.row_group}, " if self.part_name else ""
        return f"{self.file}: {part}row {self.first_row + row}"


def open_parquet_file(file: DataFile, dictionary_columns: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file; reading it verifies page checksums.

    Raises:
        DataError: naming a file that is missing, cut off or not Parquet.
    """
    handle = file.open()
    try:
        return pq.ParquetFile(
            handle,
            pre_buffer=file.remote is not None,
            page_checksum_verification=True,
            read_dictionary=list(dictionary_columns),
        )
    except READ_ERRORS as error:
        handle.close()
        others = [f for f, endings in SUFFIXES.items() if str(file).lower().endswith(endings)]
        is_other = others and "parquet" not in others
        hint = f"; by its name it is one for dataset={others[0]}" if is_other else ""
        raise DataError(
            f"{file}: not a readable Parquet file ({first_line(error)}){hint}"
        ) from error


def read_parquet_schema(file: DataFile) -> tuple[pa.Schema, list[int]]:
    """Return the column types, and the number of rows of every row group.

    Raises:
        DataError: naming a file that cannot be read.
    """
    with open_parquet_file(file) as opened:
        schema, counts = read_footer(opened, str(file))
        return flatten_schema(schema), counts


def find_absent(
    optional: Collection[str], read: Collection[str], names: Collection[str]
) -> list[str]:
    """Return the columns that JSON objects lack and may lack: an absent key is a missing value.

    A column is not among them if a near name may be meant by it; and none is if the objects have
    no column that is read, since they are hardly the right ones.

    Args:
        optional: columns that may lack a value in every row.
        read: columns that are read.
        names: of the columns that there are.
    """
    if not set(read).intersection(names):
        return []
    unread = [name for name in names if name not in read]
    absent = sorted(set(optional).difference(names))
    return [name for name in absent if not nearest_hint(name, unread)]


def check_same_schema(
    schemas: Mapping[str, pa.Schema],
    columns: Sequence[str],
    needed_by: Callable[[str], str] = lambda column: "",
) -> None:
    """Check that every file has every column once, with the type it has in the first file.

    Args:
        schemas: path -> the types in that file.
        columns: names of the columns that are read.
        needed_by: column -> what asks for it, such as the file that declares it.

    Raises:
        DataError: naming the file, the column and the nearest one.
    """
    first_path, first_schema = next(iter(schemas.items()))
    for path, schema in schemas.items():
        for name in columns:
            count = len(schema.get_all_field_indices(name))
            if count == 0:
                asked = f", which {by}" if (by := needed_by(name)) else ""
                raise DataError(f"{path}: {_describe_missing(name, asked, path, schemas, columns)}")
            if count > 1:
                raise DataError(
                    f"{path}: {count} columns are called {name!r}; give each a name of its own"
                )
            expected, type_ = first_schema.field(name).type, schema.field(name).type
            if expected != type_:
                raise DataError(
                    f"{path}: column {name!r} has type {type_}, but {expected} in {first_path}"
                )


def promote_types(schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Give a column one type that holds its values in all files, where there is one.

    Programs choose a type by the values of one part: pandas writes null where all are missing, and
    float64 for whole numbers of which one is. `cast_columns` casts what is read.

    Args:
        schemas: path -> the types in that file.
    """
    found: dict[str, dict[pa.DataType, None]] = {}
    for schema in schemas.values():
        for column in schema:
            found.setdefault(column.name, {})[column.type] = None
    common = {}
    for name, types in found.items():
        if len(types) > 1:
            plain = [pa.schema([(name, unpacked_type(type_))]) for type_ in types]
            try:
                unified = pa.unify_schemas(plain, promote_options="permissive")
            except pa.ArrowException:  # texts and numbers: `check_same_schema` tells
                continue
            common[name] = unified.field(name).type
    return {
        path: pa.schema([f.with_type(common.get(f.name, f.type)) for f in schema])
        for path, schema in schemas.items()
    }


def cast_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast columns to the types of a schema, as `promote_types` returns it, without loss.

    Raises:
        ArrowInvalid: naming the column, for a value that its type cannot hold.
    """
    for index, column in enumerate(table.schema):
        wanted = unpacked_type(schema.field(column.name).type)
        if unpacked_type(column.type) != wanted:
            try:
                cast = table[column.name].cast(wanted)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {column.name!r}: {first_line(error)}") from error
            table = table.set_column(index, column.name, cast)
    return table


def _delimiter_hint(column: str, names: Sequence[str]) -> str:
    """Return how a text is read whose names stand between another delimiter; empty for others."""
    for delimiter in ",;|\t":
        if any(delimiter in name and column in name.split(delimiter) for name in names):
            word = f'dataset.delimiter="{delimiter}"'
            word = f"'{word}'" if delimiter != "\t" else "$'dataset.delimiter=\"\\t\"'"
            return f"; its names stand between {delimiter!r}, which {word} says"
    return ""


def _describe_missing(
    name: str, asked: str, path: str, schemas: Mapping[str, pa.Schema], columns: Container[str]
) -> str:
    for other, schema in schemas.items():
        if is_partition(schema, name):
            return (
                f"no column {name!r}{asked}, and no folder {name}=... in its path, as {other} has"
            )
    folder = re.match(rf".*/{re.escape(name)}=[^/]*", path)
    if folder and not any(name in schema.names for schema in schemas.values()):
        files = f"{folder[0]}/**/*{posixpath.splitext(path)[1]}"
        return (
            f"no column {name!r}{asked}; of a folder only those below it are columns, of a glob "
            f"all in its path: {files}"
        )
    names = schemas[path].names
    unread = [n for n in names if n not in columns]  # one that is read itself is not meant
    near = _delimiter_hint(name, names) or nearest_hint(name, unread, 3)
    others = [other for other, schema in schemas.items() if name in schema.names]
    if others and not near and not asked:
        near = f", as {others[0]} has; of two tables, name one"
    return f"no column {name!r}{asked}{near}"


def read_parquet_chunks(
    file: DataFile,
    columns: Sequence[str],
    *,
    skip_bad_rows: bool,
    row_groups: Container[int] | None = None,
) -> Iterator[RowChunk]:
    """Yield the rows of a Parquet file.

    Args:
        row_groups: those that are read; None: all.
        skip_bad_rows: a row group that cannot be read gives a chunk without a table, not an error.

    Raises:
        DataError: naming the file, and the row group that cannot be read.
    """
    schema, counts = read_parquet_schema(file)
    texts = [n for n in columns if is_text(schema.field(n).type) and not is_nested(schema, n)]
    with open_parquet_file(file, texts) as opened:
        for group, count in enumerate(counts):
            if row_groups is not None and group not in row_groups:
                continue
            done = 0
            try:
                for batch in opened.iter_batches(
                    CHUNK_ROWS, row_groups=[group], columns=list(columns), use_threads=False
                ):
                    table = pa.Table.from_batches([batch])
                    for column in table.columns:
                        _check_dictionary_indices(column)
                    table = unpack_columns(table).select(list(columns))
                    yield RowChunk(file, group, done, table.num_rows, table)
                    done += table.num_rows
                _check_num_rows(done, count)
            except READ_ERRORS as error:
                problem = f"{file}: row group {group}: {first_line(error)}"
                if not skip_bad_rows or done >= count:
                    raise DataError(problem) from error
                yield RowChunk(file, group, done, count - done, None, problem)


def _check_num_rows(num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise pa.ArrowInvalid(f"{num_rows} rows, not {expected} as the footer says")


def _check_dictionary_indices(column: pa.ChunkedArray) -> None:
    """Check what Arrow takes from a file on trust: that each index has a dictionary entry.

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
    """Return the columns that `flatten_structs` makes; `is_nested` knows those out of structs."""
    while any(pt.is_struct(field.type) for field in schema):
        schema = pa.schema([part for field in schema for part in _flatten_field(field)])
    return schema


def _flatten_field(field: pa.Field) -> list[pa.Field]:
    if not pt.is_struct(field.type):
        return [field]
    return [f.with_metadata(_NESTED) for f in field.flatten()]


def is_nested(schema: pa.Schema, name: str) -> bool:
    """Tell whether a column of a flat schema lies within a struct in the file."""
    return bool(schema.field(name).metadata == _NESTED)


def flatten_structs(table: pa.Table) -> pa.Table:
    """Make a column of each field of a struct, such as `user.id`; a list of structs stays."""
    while any(pt.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def unpacked_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values, without dictionaries, views and extensions such as UUID."""
    if pt.is_dictionary(type_):
        return unpacked_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return unpacked_type(type_.storage_type)
    if pt.is_string_view(type_):
        return pa.string()
    is_bytes = pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_)
    return pa.binary() if is_bytes else type_


def unpack_columns(table: pa.Table) -> pa.Table:
    """Cast columns to their unpacked types; dictionaries of texts stay, they are quick to hash."""
    table = flatten_structs(table)
    for index, column in enumerate(table.schema):
        plain = unpacked_type(column.type)
        if pt.is_dictionary(column.type) and pt.is_string_view(column.type.value_type):
            chunks = [  # Arrow casts no views within dictionaries
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(plain))
                for chunk in table[column.name].chunks
            ]
            type_ = pa.dictionary(column.type.index_type, plain)
            table = table.set_column(index, column.name, pa.chunked_array(chunks, type_))
        elif plain != column.type and not (pt.is_dictionary(column.type) and is_text(plain)):
            is_uuid = getattr(column.type, "extension_name", "") == "arrow.uuid"
            made = pa.field(column.name, plain, metadata=_UUID if is_uuid else None)
            table = table.set_column(index, made, _cast(table[column.name], plain))
    return table


def restore_uuids(table: pa.Table) -> pa.Table:
    """Return unpacked columns with the type that those of UUIDs have in their file."""
    for index, column in enumerate(table.schema):
        if column.metadata == _UUID:
            chunks = table[column.name].cast(pa.binary(16)).chunks
            uuids = [pa.ExtensionArray.from_storage(pa.uuid(), chunk) for chunk in chunks]
            table = table.set_column(index, column.name, pa.chunked_array(uuids, pa.uuid()))
    return table


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """Return the values of columns whose chunks have a dictionary each."""
    for index, column in enumerate(table.schema):
        if pt.is_dictionary(column.type):
            values = table[column.name].cast(column.type.value_type)
            table = table.set_column(index, column.name, values)
    return table


def single_array(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, without a copy if it is one."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cast(values: pa.ChunkedArray, plain: pa.DataType) -> pa.ChunkedArray:
    if isinstance(values.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type.storage_type)
    return values.cast(plain)


def is_text(type_: pa.DataType) -> bool:
    """Tell whether values are texts or bytes, however they are packed."""
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return unpacked_type(type_) in texts
