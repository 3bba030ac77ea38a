"""Statistics of the columns of a table, computed from a sample of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.tabular.arrow_files import ARROW_FORMATS, read_arrow_chunks
from runner.data.tabular.file_list import DataFile
from runner.data.tabular.read_files import (
    default_text_format,
    is_list,
    open_parquet_file,
    read_text_chunks,
    unpack_columns,
    unpacked_type,
)

SAMPLE_ROWS = 200_000


@dataclass(frozen=True)
class ColumnStatistics:
    """One column, as a sample of rows shows it.

    Of a list column, or of texts with a separator, `num_distinct` to `non_finite_share` and
    `examples` are about the values inside.
    """

    name: str
    type: pa.DataType
    num_rows: int  # rows of the sample
    missing_share: float  # share of rows without a value
    num_distinct: int
    low: float | None = None
    high: float | None = None
    median: float | None = None
    is_whole: bool = False  # integers, or floats without a fraction
    non_finite_share: float = 0.0  # share of NaN and infinite values
    separator: str = ""  # what separates the parts of a text; empty: nothing
    mean_length: float = 1.0  # values a row
    examples: tuple[str, ...] = ()


def compute_statistics(column: pa.ChunkedArray, name: str) -> ColumnStatistics:
    """Compute the statistics of one column of the sample."""
    values = column.combine_chunks()
    missing_share = values.null_count / max(len(values), 1)
    values = values.drop_null()
    mean_length, separator, type_ = 1.0, "", values.type
    plain = unpacked_type(type_)
    values = values.cast(pa.float64() if pt.is_decimal(plain) else plain, safe=False)
    if is_list(type_):
        mean_length = float(pc.mean(pc.list_value_length(values)).as_py() or 0)
        values = values.flatten().drop_null()
    elif pt.is_string(plain) or pt.is_large_string(plain):
        separator = _guess_separator(values)
        if separator:
            parts = pc.split_pattern(values.cast(pa.string()), separator)
            mean_length = float(pc.mean(pc.list_value_length(parts)).as_py())
            values = parts.flatten()
    countable = not (pt.is_nested(values.type) or pt.is_null(values.type))
    num_distinct = int(pc.count_distinct(values).as_py()) if countable else 0
    low = high = median = None
    non_finite_share = 0.0
    is_whole = pt.is_integer(values.type)
    if len(values) and (pt.is_integer(values.type) or pt.is_floating(values.type)):
        x = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        finite = np.isfinite(x)
        x, non_finite_share = x[finite], 1 - float(finite.mean())
        if len(x):
            low, high, median = float(x.min()), float(x.max()), float(np.median(x))
            is_whole = bool((x == np.rint(x)).all()) and not non_finite_share
    first_values = pc.unique(values[:1000]).to_pylist()[:3] if num_distinct else []
    return ColumnStatistics(
        name=name,
        type=type_,
        num_rows=len(column),
        missing_share=missing_share,
        num_distinct=num_distinct,
        low=low,
        high=high,
        median=median,
        is_whole=is_whole,
        non_finite_share=non_finite_share,
        separator=separator,
        mean_length=mean_length,
        examples=tuple(map(str, first_values)),
    )


def _guess_separator(texts: pa.Array) -> str:
    """Return a character that many texts contain and whose parts repeat; empty if none does."""
    values = texts[:20_000].cast(pa.string())
    num_texts = pc.count_distinct(values).as_py()
    for character in ("|", ";", ",", " "):
        share = pc.mean(pc.match_substring(values, character).cast(pa.float64())).as_py() or 0
        if share < 0.2:
            continue
        num_parts = pc.count_distinct(pc.split_pattern(values, character).flatten()).as_py()
        if num_parts < num_texts / 2:
            return character
    return ""


def sample_rows(files: Sequence[DataFile], format_: str, schema: pa.Schema) -> pa.Table:
    """Return rows from a few places of the files, so that a sorted file does not mislead."""
    tables, count = [], 0
    for table in _sample_tables(files, format_, schema):
        tables.append(table.slice(0, SAMPLE_ROWS - count))
        count += tables[-1].num_rows
        if count >= SAMPLE_ROWS:
            break
    return (
        pa.concat_tables(tables, promote_options="permissive") if tables else schema.empty_table()
    )


def _sample_tables(
    files: Sequence[DataFile], format_: str, schema: pa.Schema
) -> Iterator[pa.Table]:
    chosen = [files[n] for n in sorted({0, len(files) // 2, len(files) - 1})]
    for file in chosen:
        if format_ in ARROW_FORMATS:
            for chunk in read_arrow_chunks(file, format_, schema.names):
                if chunk.table is not None:
                    yield chunk.table.slice(0, SAMPLE_ROWS // len(chosen))
                break
            continue
        if format_ != "parquet":
            types = {f.name: pa.string() if pt.is_null(f.type) else f.type for f in schema}
            for chunk in read_text_chunks(
                file, types, default_text_format(format_), skip_bad_rows=True
            ):
                if chunk.table is not None:
                    yield chunk.table
            continue
        with open_parquet_file(file) as opened:
            groups = sorted({0, opened.num_row_groups // 2, max(opened.num_row_groups - 1, 0)})
            for group in groups[: opened.num_row_groups]:
                num_rows = SAMPLE_ROWS // len(groups) // len(chosen)
                for batch in opened.iter_batches(num_rows, row_groups=[group]):
                    yield unpack_columns(pa.Table.from_batches([batch]))
                    break
