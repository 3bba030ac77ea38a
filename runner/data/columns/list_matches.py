"""Counts how often a list holds its row's id, such as a history the item that is shown.

Shape legend: R rows of a chunk, V values of a list column.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.column_specs import COUNT, IdSpec, NumericSpec
from runner.data.columns.raw_ids import MAX_EXACT_INTEGER, as_lists, flatten_lists
from runner.data.files.bad_rows import RowValidator
from runner.data.files.read_files import as_texts, single_array


def read_matches(table: pa.Table, spec: NumericSpec, validator: RowValidator) -> np.ndarray:
    """Return [R] float64: how many values of the list are the row's id, or their share.

    Ids are compared as texts, 12.0 as 12. A missing id equals no value, and a missing list is
    empty; both give 0.

    Raises:
        DataError: for a text that is not a list, unless bad rows are skipped.
    """
    reader = IdSpec(spec.column, spec.column, list=True, separator=spec.separator)
    lists = as_lists(reader, spec.column, single_array(table, spec.column), validator)
    counts_R, shares_R = count_matches(lists, single_array(table, spec.of))
    return counts_R if spec.encode == COUNT else shares_R


def count_matches(lists: pa.Array, ids_R: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return how many values of each list are the row's id, and their share: [R] float64 each."""
    flat_V, offsets_R1 = flatten_lists(lists)
    lengths_R = np.diff(offsets_R1)
    row_V: np.ndarray = np.repeat(np.arange(len(lengths_R)), lengths_R)
    if not (pt.is_integer(ids_R.type) and ids_R.type == flat_V.type):
        flat_V, ids_R = _comparable_texts(flat_V), _comparable_texts(ids_R)
    same_V = pc.equal(flat_V, ids_R.take(pa.array(row_V))).fill_null(False)
    found_V = same_V.to_numpy(zero_copy_only=False).astype(bool)
    counts_R = np.bincount(row_V[found_V], minlength=len(lengths_R)).astype(np.float64)
    return counts_R, counts_R / np.maximum(lengths_R, 1)


def _comparable_texts(values: pa.Array) -> pa.Array:
    if pt.is_floating(values.type):  # with all digits, since Arrow writes 1e+10
        x = values.cast(pa.float64())
        is_whole = pc.and_(pc.equal(x, pc.round(x)), pc.less_equal(pc.abs(x), MAX_EXACT_INTEGER))
        digits = pc.if_else(is_whole, x, pa.scalar(None, x.type)).cast(pa.int64()).cast(pa.string())
        return pc.coalesce(digits, values.cast(pa.string()))
    texts = pc.utf8_trim_whitespace(as_texts(values))
    return pc.replace_substring_regex(texts, r"^(-?\d+)\.0*$", r"\1")
