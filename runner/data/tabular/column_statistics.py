"""What a sample of a table's rows shows of one column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.tabular.file_list import DataFile
from runner.data.tabular.read_files import (
    TextFormat,
    open_parquet_file,
    read_text_chunks,
    unpack_columns,
    unpacked_type,
)

SAMPLE_ROWS = 200_000


@dataclass(frozen=True)
class ColumnStatistics:
    """One column, as a sample of rows shows it."""

    name: str
    type: pa.DataType
    num_rows: int  # of the sample
    missing_share: float  # share
    num_distinct: int  # values in the sample
    low: float | None = None
    high: float | None = None
    median: float | None = None
    is_whole: bool = False  # floats without a fraction
    non_finite_share: float = 0.0  # share of NaN and infinite values
    separator: str = ""
    mean_length: float = 1.0
    examples: tuple[str, ...] = ()


def compute_statistics(column: pa.ChunkedArray, name: str) -> ColumnStatistics:
    """Statistics of one column of the sample."""
    values = column.combine_chunks()
    missing = values.null_count / max(len(values), 1)
    values = values.drop_null()
    mean_length, separator, type_ = 1.0, "", values.type
    plain = unpacked_type(type_)
    values = values.cast(pa.float64() if pt.is_decimal(plain) else plain, safe=False)
    if pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_):
        mean_length = float(pc.mean(pc.list_value_length(values)).as_py() or 0)
        values = values.flatten().drop_null()
    elif pt.is_string(plain) or pt.is_large_string(plain):
        separator = _separator(values)
        if separator:
            parts = pc.split_pattern(values.cast(pa.string()), separator)
            mean_length = float(pc.mean(pc.list_value_length(parts)).as_py())
            values = parts.flatten()
    countable = not (pt.is_nested(values.type) or pt.is_null(values.type))
    distinct = int(pc.count_distinct(values).as_py()) if countable else 0
    low = high = median = None
    not_finite = 0.0
    whole = pt.is_integer(values.type)
    if len(values) and (pt.is_integer(values.type) or pt.is_floating(values.type)):
        x = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        finite = np.isfinite(x)
        x, not_finite = x[finite], 1 - float(finite.mean())
        if len(x):
            low, high, median = float(x.min()), float(x.max()), float(np.median(x))
            whole = bool((x == np.rint(x)).all()) and not not_finite
    examples = tuple(str(v) for v in pc.unique(values[:1000]).to_pylist()[:3]) if distinct else ()
    return ColumnStatistics(
        name,
        type_,
        len(column),
        missing,
        distinct,
        low,
        high,
        median,
        whole,
        not_finite,
        separator,
        mean_length,
        examples,
    )


def _separator(texts: pa.Array) -> str:
    """A sign that many values hold, between parts that come again and again."""
    values = texts[:20_000].cast(pa.string())
    whole = pc.count_distinct(values).as_py()
    for sign in ("|", ";", ",", " "):
        holds = pc.mean(pc.match_substring(values, sign).cast(pa.float64())).as_py() or 0
        if holds < 0.2:
            continue
        parts = pc.count_distinct(pc.split_pattern(values, sign).flatten()).as_py()
        if parts < whole / 2:
            return sign
    return ""


def sample_rows(files: Sequence[DataFile], format_: str, schema: pa.Schema) -> pa.Table:
    """Rows from a few places, so that a sorted file does not mislead."""
    tables, count = [], 0
    for table in _pieces(files, format_, schema):
        tables.append(table.slice(0, SAMPLE_ROWS - count))
        count += tables[-1].num_rows
        if count >= SAMPLE_ROWS:
            break
    return (
        pa.concat_tables(tables, promote_options="permissive") if tables else schema.empty_table()
    )


def _pieces(files: Sequence[DataFile], format_: str, schema: pa.Schema) -> Iterator[pa.Table]:
    spread = [files[n] for n in sorted({0, len(files) // 2, len(files) - 1})]
    for file in spread:
        if format_ != "parquet":
            types = {f.name: pa.string() if pt.is_null(f.type) else f.type for f in schema}
            for piece in read_text_chunks(
                file, types, default_text_format(format_), skip_bad_rows=True
            ):
                if piece.table is not None:
                    yield piece.table
            continue
        with open_parquet_file(file) as opened:
            groups = sorted({0, opened.num_row_groups // 2, max(opened.num_row_groups - 1, 0)})
            for group in groups[: opened.num_row_groups]:
                share = SAMPLE_ROWS // len(groups) // len(spread)
                for batch in opened.iter_batches(share, row_groups=[group]):
                    yield unpack_columns(pa.Table.from_batches([batch]))
                    break


def default_text_format(format_: str) -> TextFormat:
    return TextFormat("\t" if format_ == "tsv" else ",")
