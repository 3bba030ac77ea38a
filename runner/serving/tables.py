"""Converts tables in memory of pandas, polars or Arrow to Arrow, and results back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from runner.data.files.read_files import flatten_structs
from runner.errors import DataError


def as_arrow(table: Any) -> pa.Table:
    """Return a table as Arrow, with a column for each field of a struct, such as `user.id`.

    Args:
        table: a `pandas.DataFrame`, a `polars.DataFrame`, an Arrow table or record batch, or
            anything else that offers Arrow's C stream.

    Raises:
        DataError: for any other object, for columns with the same name, and for values of several
            types.
    """
    kind = type(table)
    is_table = hasattr(table, "__arrow_c_stream__") and kind.__name__ != "Series"  # one column
    if not isinstance(table, pa.Table) and not is_table:
        raise DataError(
            f"the table: a {kind.__name__}; expected a DataFrame of pandas or polars, or an Arrow "
            "table"
        )
    try:
        if kind.__module__.partition(".")[0] == "pandas":
            result = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
        else:
            result = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the table: {error}") from error
    return flatten_structs(result)


def like(result: pa.Table, original: Any) -> Any:
    """Convert a result to the kind of table that was given; a DataFrame keeps its index."""
    kind = type(original).__module__.partition(".")[0]
    if kind == "pandas":
        frame = result.to_pandas()
        frame.index = original.index
        return frame
    if kind == "polars":
        import polars

        return polars.from_arrow(result)
    return result
