"""Tables in memory, of pandas, polars or Arrow: to Arrow, and back to the kind that was given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from runner.data.tabular.read_files import flatten_structs
from runner.errors import DataError


def as_arrow(table: Any) -> pa.Table:
    """Return a table as Arrow, with a column for each field of a struct, such as `user.id`.

    Args:
        table: a `pandas.DataFrame`, a `polars.DataFrame`, an Arrow table or record batch, or
            anything else that offers Arrow's C stream.

    Raises:
        DataError: for anything else, and for a column whose values have several types.
    """
    try:
        if isinstance(table, pa.Table):
            found = table
        elif type(table).__module__.partition(".")[0] == "pandas":
            found = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
        elif hasattr(table, "__arrow_c_stream__"):
            found = pa.table(table)
        else:
            raise DataError(
                f"the table: a {type(table).__name__}; expected a DataFrame of pandas or polars, "
                "or an Arrow table"
            )
    except pa.ArrowException as error:
        raise DataError(f"the table: {error}") from error
    return flatten_structs(found)


def like(result: pa.Table, given: Any) -> Any:
    """Return a result as the kind of table that was given; a DataFrame keeps its index."""
    kind = type(given).__module__.partition(".")[0]
    if kind == "pandas":
        frame = result.to_pandas()
        frame.index = given.index
        return frame
    if kind == "polars":
        import polars

        return polars.from_arrow(result)
    return result
