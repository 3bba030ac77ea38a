"""Checks that all files of a table have the same columns, with compatible types."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Mapping, Sequence

import pyarrow as pa

from runner.data.files.partitions import is_partition
from runner.data.files.read_files import unpacked_type
from runner.errors import DataError, first_line, nearest_hint


def find_absent(
    optional: Collection[str], read: Collection[str], names: Collection[str]
) -> list[str]:
    """Return the columns that JSON objects may lack, and do: an absent key is a missing value.

    A column with a nearly equal name among `names` is not returned, since that may be meant; none
    is if the objects have no column that is read, since the files are hardly the right ones.

    Args:
        optional: columns that may be missing in every row.
        names: of the existing columns.
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
    """Check that every file has every column once, with the type of the first file.

    Args:
        schemas: path -> the types in that file.
        needed_by: column -> what requires it, such as the file that declares it.

    Raises:
        DataError: naming the file, the column and the nearest one.
    """
    first_path, first_schema = next(iter(schemas.items()))
    for path, schema in schemas.items():
        for name in columns:
            count = len(schema.get_all_field_indices(name))
            if count == 0:
                reason = f", which {by}" if (by := needed_by(name)) else ""
                raise DataError(
                    f"{path}: {_describe_missing(name, reason, path, schemas, columns)}"
                )
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
    """Give a column one type that can represent its values in all files, if there is one.

    Programs choose a type by the values of one part: pandas writes null if all are missing, and
    float64 for whole numbers if one is missing. `cast_columns` casts what is read.

    Args:
        schemas: path -> the types in that file.
    """
    types_of: dict[str, dict[pa.DataType, None]] = {}
    for schema in schemas.values():
        for column in schema:
            types_of.setdefault(column.name, {})[column.type] = None
    common = {}
    for name, types in types_of.items():
        if len(types) > 1:
            plain = [pa.schema([(name, unpacked_type(type_))]) for type_ in types]
            try:
                unified = pa.unify_schemas(plain, promote_options="permissive")
            except pa.ArrowException:  # texts and numbers: `check_same_schema` reports them
                continue
            common[name] = unified.field(name).type
    return {
        path: pa.schema([f.with_type(common.get(f.name, f.type)) for f in schema])
        for path, schema in schemas.items()
    }


def cast_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast columns to the types of a schema, as `promote_types` returns it, without loss.

    Raises:
        ArrowInvalid: naming the column, for a value that its type cannot represent.
    """
    for index, column in enumerate(table.schema):
        type_ = unpacked_type(schema.field(column.name).type)
        if unpacked_type(column.type) != type_:
            try:
                cast = table[column.name].cast(type_)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {column.name!r}: {first_line(error)}") from error
            table = table.set_column(index, column.name, cast)
    return table


def find_misfit(table: pa.Table, schema: pa.Schema) -> tuple[int, pa.ArrowInvalid]:
    """Return the first row that `cast_columns` cannot cast, and why, for a table that has one."""
    errors: list[pa.ArrowInvalid] = []

    def has_misfit(row: int) -> bool:
        try:
            cast_columns(table.slice(0, row + 1), schema)
        except pa.ArrowInvalid as error:
            errors.append(error)
            return True
        return False

    row = bisect_left(range(table.num_rows), True, key=has_misfit)
    return row, errors[-1]


def _delimiter_hint(column: str, names: Sequence[str]) -> str:
    """Return the setting that reads a text with another delimiter; empty if there is none."""
    for delimiter in ",;|\t":
        if any(delimiter in name and column in name.split(delimiter) for name in names):
            word = f'dataset.delimiter="{delimiter}"'
            word = f"'{word}'" if delimiter != "\t" else "$'dataset.delimiter=\"\\t\"'"
            return f"; its names stand between {delimiter!r}, which {word} says"
    return ""


def _describe_missing(
    name: str, reason: str, path: str, schemas: Mapping[str, pa.Schema], columns: Container[str]
) -> str:
    for other, schema in schemas.items():
        if is_partition(schema, name):
            return (
                f"no column {name!r}{reason}, and no folder {name}=... in its path, as {other} has"
            )
    folder = re.match(rf".*/{re.escape(name)}=[^/]*", path)
    if folder and not any(name in schema.names for schema in schemas.values()):
        files = f"{folder[0]}/**/*{posixpath.splitext(path)[1]}"
        return (
            f"no column {name!r}{reason}; of a folder only those below it are columns, of a glob "
            f"all in its path: {files}"
        )
    names = schemas[path].names
    # one that is read itself, or that occurs with the missing one in other files, is not meant
    excluded = {n for schema in schemas.values() if name in schema.names for n in schema.names}
    unread = [n for n in names if n not in columns and n not in excluded]
    near = _delimiter_hint(name, names) or nearest_hint(name, unread, 3)
    having = [other for other, schema in schemas.items() if name in schema.names]
    if having and not near and not reason:
        near = f", as {having[0]} has; of two tables, name one"
    return f"no column {name!r}{reason}{near}"
