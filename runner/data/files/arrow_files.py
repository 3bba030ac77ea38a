"""Reads the columnar formats besides Parquet: Arrow IPC (Feather), ORC, and Avro.

Their values are typed, so none can be of a wrong type. A part of a file that cannot be read is an
error, even with `on_bad_rows=skip`, since the number of its rows is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from runner.data.core.blocks import READ_ERRORS
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import CHUNK_ROWS, RowChunk, flatten_schema, unpack_columns
from runner.errors import DataError, first_line
from runner.machine.imports import missing_extra

ARROW_FORMATS = ("arrow", "orc", "avro")
FEATHER_1 = b"FEA1"  # the first bytes of a Feather file of the year 2016
ARROW_FILE = b"ARROW1"  # of a file with a list of its record batches, unlike a stream
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# type name for Avro values that no column of a table can have, such as records and maps
UNSUPPORTED = pa.map_(pa.string(), pa.null())
_AVRO_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_AVRO_TIMES: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def check_installed(format_: str) -> None:
    """Check that the library that reads a format is installed.

    Raises:
        DataError: naming the command that installs it.
    """
    if format_ == "avro":
        for missing in missing_extra("dataset.format=avro", "avro", "fastavro"):
            raise DataError(missing)


def read_arrow_schema(file: DataFile, format_: str) -> pa.Schema:
    """Return the types of the columns of a file; objects give columns such as `user.id`.

    Raises:
        DataError: naming a file that cannot be read.
    """
    check_installed(format_)
    format_reader = _FORMATS[format_]
    try:
        with file.open() as handle:
            return flatten_schema(format_reader.read_schema(handle))
    except READ_ERRORS as error:
        problem = f"not a readable {format_reader.name} file ({first_line(error)})"
        raise DataError(f"{file}: {problem}") from error


def leave_out_empty(
    schemas: Mapping[str, pa.Schema], files: Sequence[DataFile], format_: str
) -> dict[str, pa.Schema]:
    """Return the columns of the files with rows, if files differ; otherwise of all.

    Programs write other types into files without rows, such as pandas null for texts.

    Args:
        schemas: path -> the columns of that file.
        format_: of ARROW_FORMATS; files of other formats are not opened.

    Raises:
        DataError: naming a file that cannot be read.
    """
    if format_ not in ARROW_FORMATS or len(set(schemas.values())) < 2:
        return dict(schemas)
    own_files = (file for file in files if str(file) in schemas)
    with_rows = [str(file) for file in own_files if any(read_arrow_chunks(file, format_, []))]
    return {path: schemas[path] for path in with_rows}


def read_arrow_chunks(file: DataFile, format_: str, columns: Sequence[str]) -> Iterator[RowChunk]:
    """Yield the rows of a file.

    Raises:
        DataError: naming the file, and the part of it that cannot be read.
    """
    check_installed(format_)
    part, num_read, count = 0, 0, 0
    format_reader = _FORMATS[format_]
    unit = format_reader.part_name
    try:
        with file.open() as handle:
            names = _names_in_file(format_reader.read_schema(handle), columns)
            handle.seek(0)
            for part, table in format_reader.read_parts(handle, names):
                for first in range(0, table.num_rows, CHUNK_ROWS):
                    rows = table.slice(first, CHUNK_ROWS)
                    count = rows.num_rows
                    at = first if unit else num_read  # blocks of Avro have no number
                    chosen = unpack_columns(rows.select(names)).select(list(columns))
                    yield RowChunk(file, part, at, count, chosen, part_name=unit)
                    num_read += count
                part += 1  # for the message, if reading the next one fails
    except READ_ERRORS as error:
        where = f"{unit} {part}" if unit else f"after row {num_read - 1}" if num_read else "row 0"
        raise DataError(f"{file}: {where}: {first_line(error)}") from error


def _names_in_file(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the columns of a file in which these are, as fields of structs or themselves."""
    if not any(pt.is_struct(field.type) for field in schema):
        return list(columns)
    names = set(columns)
    return [f.name for f in schema if names.intersection(flatten_schema(pa.schema([f])).names)]


def _open_arrow(handle: Any, columns: Sequence[str] | None = None) -> Any:
    """Open a file or a stream of record batches; without columns, with all of them.

    Raises:
        ArrowInvalid: for a file of the first version of Feather, and a stream without an end.
    """
    start = handle.read(len(ARROW_FILE))
    handle.seek(0)
    if start.startswith(FEATHER_1):
        raise pa.ArrowInvalid("Feather version 1; write it again as version 2")
    open_any = pa.ipc.open_file if start == ARROW_FILE else pa.ipc.open_stream
    schema = open_any(handle).schema
    if start != ARROW_FILE:  # Arrow reads a truncated stream as a shorter one
        handle.seek(-len(END_OF_STREAM), os.SEEK_END)
        if handle.read() != END_OF_STREAM:
            raise pa.ArrowInvalid("it has no mark of its end: it is cut off, or not yet closed")
    handle.seek(0)
    if columns is None:
        return open_any(handle)
    # a file without rows may lack columns
    fields = [n for n, name in enumerate(schema.names) if name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return open_any(handle, options=options)


def _arrow_schema(handle: Any) -> pa.Schema:
    return _open_arrow(handle).schema


def _read_arrow(handle: Any, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    reader = _open_arrow(handle, columns)
    if hasattr(reader, "num_record_batches"):
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for number, batch in enumerate(batches):
        batch.validate(full=True)  # Arrow does not check offsets, indices and texts from a file
        yield number, pa.Table.from_batches([batch])


def _orc_schema(handle: Any) -> pa.Schema:
    from pyarrow import orc

    return orc.ORCFile(handle).schema


def _read_orc(handle: Any, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    from pyarrow import orc

    file = orc.ORCFile(handle)
    # without a column, the first one tells the number of rows
    names = list(columns) or file.schema.names[:1]
    for number in range(file.nstripes):
        batch = file.read_stripe(number, columns=names)
        batch.validate(full=True)
        yield number, pa.Table.from_batches([batch])


def _open_avro(handle: Any) -> Any:
    import fastavro

    with _as_arrow_errors():
        return fastavro.reader(handle)


def _avro_fields(reader: Any) -> dict[str, Any]:
    schema = reader.writer_schema
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise pa.ArrowInvalid("its rows are no records")
    return {field["name"]: field["type"] for field in schema["fields"]}


def _avro_schema(handle: Any) -> pa.Schema:
    fields = _avro_fields(_open_avro(handle))
    return pa.schema([(name, _arrow_type(type_)) for name, type_ in fields.items()])


def _read_avro(handle: Any, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    reader = _open_avro(handle)
    types = {name: _arrow_type(type_) for name, type_ in _avro_fields(reader).items()}
    names = list(columns) or list(types)[:1]
    while True:
        with _as_arrow_errors():
            records = list(islice(reader, CHUNK_ROWS))
            if not records:
                return
            arrays = [_avro_column([r[name] for r in records], types[name]) for name in names]
        yield 0, pa.table(arrays, names=names)


def _avro_column(values: list[Any], type_: pa.DataType) -> pa.Array:
    if type_ == UNSUPPORTED:
        values = [None if value is None else [] for value in values]
    if type_ == pa.string():  # a UUID is read as a struct
        values = [v if v is None or isinstance(v, str) else str(v) for v in values]
    return pa.array(values, type_)


def _arrow_type(avro: Any) -> pa.DataType:
    """Return the Arrow type of an Avro type; a union may hold null and one type, or two numbers."""
    if isinstance(avro, list):
        types = [_arrow_type(member) for member in avro if member != "null"]
        if set(types) == {pa.int32(), pa.int64()}:
            return pa.int64()
        return types[0] if len(set(types)) == 1 else UNSUPPORTED if types else pa.null()
    if isinstance(avro, str):
        return _AVRO_TYPES.get(avro, UNSUPPORTED)
    logical = avro.get("logicalType")
    if logical in _AVRO_TIMES:
        return _AVRO_TIMES[logical]
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if avro["type"] == "array":
        items = _arrow_type(avro["items"])
        return UNSUPPORTED if items == UNSUPPORTED else pa.list_(items)
    return _arrow_type(avro["type"])


@contextmanager
def _as_arrow_errors() -> Iterator[None]:
    """Convert all errors that fastavro raises for damaged bytes, of many classes, to ArrowInvalid.

    Raises:
        ArrowInvalid: in place of any error.
    """
    try:
        yield
    except Exception as error:
        reason = first_line(error) or "it is cut off or damaged"
        raise pa.ArrowInvalid(f"{type(error).__name__}: {reason}") from error


class _Format(NamedTuple):
    name: str
    part_name: str  # the term for parts of a file; empty: they have no number
    read_schema: Callable[[Any], pa.Schema]
    read_parts: Callable[[Any, Sequence[str]], Iterator[tuple[int, pa.Table]]]


_FORMATS = {
    "arrow": _Format("Arrow or Feather", "record batch", _arrow_schema, _read_arrow),
    "orc": _Format("ORC", "stripe", _orc_schema, _read_orc),
    "avro": _Format("Avro", "", _avro_schema, _read_avro),
}
