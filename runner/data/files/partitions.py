"""Columns from folders such as `dt=2026-01-01`: one value for all rows of the files below.

A column that a file contains takes precedence over a folder of its name, in all files of the table.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence

import pyarrow as pa

from runner.data.files.file_list import DataFile

_PARTITION = {b"partition": b"true"}  # of a field that is not in the file
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_INT64 = range(-(2**63), 2**63)


def with_partitions(
    schemas: Mapping[str, pa.Schema], files: Iterable[DataFile], texts: Container[str] = ()
) -> dict[str, pa.Schema]:
    """Return the columns of each file, followed by those of its folders.

    They are integers if all values of all files are whole numbers, and texts otherwise.

    Args:
        schemas: path -> the columns that are in the file.
        files: all of them, for their folders.
        texts: names of columns that are texts whatever their values.
    """
    used_names = {name for schema in schemas.values() for name in schema.names}
    values: dict[str, set[str | None]] = {}
    for file in files:
        for name, value in file.partitions.items():
            values.setdefault(name, set()).add(value)
    fields = {
        name: pa.field(
            name,
            pa.string() if name in texts or not all(map(_is_whole, texts_of_name)) else pa.int64(),
            metadata=_PARTITION,
        )
        for name, texts_of_name in values.items()
        if name not in used_names
    }
    more = {str(f): [fields[n] for n in f.partitions if n in fields] for f in files}
    return {path: pa.schema([*schema, *more[path]]) for path, schema in schemas.items()}


def _is_whole(value: str | None) -> bool:
    return value is None or (_WHOLE_NUMBER.fullmatch(value) is not None and int(value) in _INT64)


def is_partition(schema: pa.Schema, name: str) -> bool:
    """Return whether a column comes from a folder."""
    index = schema.get_field_index(name)  # -1 if it is absent, or repeated
    return bool(index >= 0 and schema.field(index).metadata == _PARTITION)


def columns_in_file(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the columns that are read from the file's content."""
    return [name for name in names if not is_partition(schema, name)]


def append_partitions(
    table: pa.Table, file: DataFile, schema: pa.Schema, names: Sequence[str]
) -> pa.Table:
    """Return columns of a file's rows, including those of its folders.

    Args:
        table: the columns that are read from the file.
        schema: of the file, as `with_partitions` returns it.
    """
    for name in names:
        if is_partition(schema, name):
            value = pa.scalar(file.partitions[name], pa.string()).cast(schema.field(name).type)
            table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table.select(names)
