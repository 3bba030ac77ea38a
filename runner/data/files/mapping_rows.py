"""Makes tables from rows that are mappings from column to value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def table_of_mappings(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None
) -> pa.Table:
    """Return rows as a table. Fractions in a column of integers are refused, not cut off.

    Args:
        rows: column -> value; a column that a row lacks is missing there.
        schema: the types; None: inferred from the values.

    Raises:
        ArrowInvalid: naming the column of a fraction, or as raised by Arrow for another value of a
            wrong type, and for an integer from 2^63 on in a column without a type.
    """
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except OverflowError as error:
        raise pa.ArrowInvalid(
            "an integer is outside of 64 bits with a sign: a pyarrow.RecordBatch with a column of "
            "uint64 takes integers below 2^64"
        ) from error
    for column in table.schema if schema is not None else ():
        if "int" not in str(column.type) or _are_whole([row.get(column.name) for row in rows]):
            continue
        for row, converted in zip(rows, table[column.name].to_pylist()):
            if not _is_whole(row.get(column.name), converted):
                raise pa.ArrowInvalid(
                    f"column {column.name!r}: value {row[column.name]!r} is not of type "
                    f"{column.type}, which rows before it have"
                )
    return table


def _are_whole(values: Sequence[Any]) -> bool:
    """Return, fast, whether no value can have a fraction, by the type that Arrow infers."""
    try:
        return "int" in str(pa.array(values).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False


def _is_whole(value: Any, converted: Any) -> bool:
    """Return whether integers, also those in lists, were converted unchanged."""
    if isinstance(converted, list):
        return all(map(_is_whole, value, converted))
    return not isinstance(converted, int) or bool(value == converted)
