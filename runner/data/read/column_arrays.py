"""Single columns of a window, from Arrow to NumPy: filled, encoded and checked.

Shape legend: R rows of the window in file order, W rows selected from it in their final order, V
values of a list column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.columns import CategoricalColumn, LabelColumn, SequenceColumn
from runner.data.core.transforms import as_float32, hash_ids
from runner.data.growing.settings import NO_ID
from runner.data.read.arrow_views import view_as_arrow, view_as_numpy
from runner.data.read.gather import gather_lists, gather_rows
from runner.data.read.index import BlockIndex
from runner.errors import DataError


@dataclass(frozen=True)
class JaggedColumn:
    """The values of W lists, concatenated."""

    values_V: np.ndarray
    offsets_W1: np.ndarray  # int64, from 0
    weights_V: np.ndarray | None = None  # float32


@dataclass(frozen=True)
class RowSource:
    """The origin of the rows of a window."""

    index: BlockIndex
    blocks: np.ndarray

    def row_numbers(self) -> np.ndarray:
        """Return the number in the split of every row."""
        starts, rows = self.index.start_N[self.blocks], self.index.rows_N[self.blocks]
        shift = starts - (np.cumsum(rows) - rows)
        return np.asarray(np.arange(rows.sum()) + np.repeat(shift, rows))

    def fail(self, column: str, values: np.ndarray, bad: np.ndarray, rule: str) -> NoReturn:
        """Raise an error that names the first bad row.

        Raises:
            DataError: always.
        """
        row = int(np.flatnonzero(bad)[0])
        self.fail_at(row, column, f"value {values[row]}: {rule}")

    def fail_at(self, row: int, column: str, problem: str) -> NoReturn:
        """Raise an error that names file, row group and row of a row of the window.

        Raises:
            DataError: always.
        """
        ends = np.cumsum(self.index.rows_N[self.blocks])
        position = int(np.searchsorted(ends, row, side="right"))
        block = self.blocks[position]
        row_in_block = row - int(ends[position] - self.index.rows_N[block])
        path: Path = self.index.files[self.index.file_N[block]]
        group = int(self.index.group_N[block])
        raise DataError(
            f"{path}: row group {group}, row {row_in_block}, column {column!r}: {problem}"
        )


def read_numbers(
    values: pa.ChunkedArray, name: str, default: float | None, source: RowSource
) -> np.ndarray:
    """Return a column as one NumPy array, with missing values filled; NaN counts as missing."""
    if not values.null_count:
        numbers = _to_numpy(values)
        if default is not None and numbers.dtype.kind == "f" and np.isnan(numbers).any():
            return np.where(np.isnan(numbers), numbers.dtype.type(default), numbers)
        return numbers
    if default is None:
        missing = values.is_null().to_numpy()
        source.fail_at(int(np.flatnonzero(missing)[0]), name, "is missing and has no default")
    if not _holds(values.type, default):
        is_id = isinstance(default, int)  # numbers become float32 in any case
        values = values.cast(pa.int64() if is_id else pa.float64(), safe=is_id)
    filled = pc.fill_null(values, _make_scalar(default, values.type))
    return read_numbers(filled, name, default, source)


def _holds(type_: pa.DataType, value: float) -> bool:
    if pa.types.is_floating(type_):
        return True
    if pa.types.is_boolean(type_) or value != int(value):
        return value in (0, 1)
    limits = np.iinfo(str(type_))
    return limits.min <= value <= limits.max


@lru_cache(maxsize=64)
def _make_scalar(value: float, type_: pa.DataType) -> pa.Scalar:
    """Return an Arrow scalar from a cache; `pa.scalar` would import pandas."""
    return view_as_arrow(np.array([value]))[0].cast(type_)


def encode_ids(
    values: pa.ChunkedArray, c: CategoricalColumn | SequenceColumn, source: RowSource
) -> np.ndarray:
    """Return ids as they are or hashed, with missing values filled.

    Ids of a growing table are int64, and NO_ID if missing.
    """
    if c.encode == "growing":  # missing ones are NO_ID in prepared files, null in a user's files
        missing = values.is_null().to_numpy()
        ids = _to_numpy(pc.fill_null(values, 0)).astype(np.int64)
        return np.where(missing, NO_ID, ids)
    if not isinstance(c, CategoricalColumn) or c.encode == "as_is":
        return read_numbers(values, c.name, c.default, source)
    if not values.null_count or c.default is None:
        return hash_ids(read_numbers(values, c.name, None, source), c.num_rows, c.salt)
    missing = values.is_null().to_numpy()
    hashed = hash_ids(read_numbers(values, c.name, 0, source), c.num_rows, c.salt)
    return np.where(missing, c.default, hashed)  # the default is an id: it is not hashed


def _to_numpy(values: pa.ChunkedArray) -> np.ndarray:
    array = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()  # this copies
    return view_as_numpy(array)


def check_ids(
    ids: np.ndarray,
    c: CategoricalColumn | SequenceColumn,
    fail: Callable[[str, np.ndarray, np.ndarray, str], None],
) -> np.ndarray:
    """Refuse ids out of range, which fused tables would silently map to row 0."""
    if c.encode == "growing":
        return ids
    # viewed as unsigned, a negative id exceeds any number of rows that its type can represent
    if ids.dtype.kind == "i" and c.num_rows <= np.iinfo(ids.dtype).max:
        wrong = len(ids) > 0 and int(ids.view(ids.dtype.str.replace("i", "u")).max()) >= c.num_rows
    else:
        wrong = len(ids) > 0 and (ids.min() < 0 or ids.max() >= c.num_rows)
    if wrong:
        bad = (ids < 0) | (ids >= c.num_rows)
        fail(c.name, ids, bad, f"its table has the rows 0 to {c.num_rows - 1}")
    return ids


def gather_list_column(
    table: pa.Table,
    c: CategoricalColumn | SequenceColumn,
    order: np.ndarray | slice,
    source: RowSource,
) -> JaggedColumn:
    """Return the selected rows of a list column; a missing list becomes an empty one."""
    flat, offsets_R1 = _flatten_lists(table[c.name])

    def fail(name: str, ids: np.ndarray, bad: np.ndarray, rule: str) -> None:
        position = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(offsets_R1, position, side="right")) - 1
        source.fail_at(row, name, f"value {ids[position]}: {rule}")

    if flat.null_count and c.default is None and c.encode != "growing":
        missing = flat.is_null().to_numpy()
        fail(c.name, np.where(missing, "null", ""), missing, "missing and has no default")
    ids = check_ids(encode_ids(flat, c, source), c, fail)
    values_V, positions, offsets_W1 = gather_lists(ids, offsets_R1, order)
    weights_V = None
    if isinstance(c, CategoricalColumn) and c.weights:
        weights, weight_offsets_R1 = _flatten_lists(table[c.weights])
        assert np.array_equal(weight_offsets_R1, offsets_R1), "preparation writes them in pairs"
        weights_V = gather_rows(_to_numpy(weights), positions)
    return JaggedColumn(values_V, offsets_W1, weights_V)


def _flatten_lists(lists: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return the concatenated values of all lists, and R + 1 offsets of the rows."""
    if lists.null_count or pa.types.is_fixed_size_list(lists.type):
        lengths = _to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        flat = [chunk.flatten() for chunk in lists.chunks]
    else:
        offsets = [view_as_numpy(chunk.offsets) for chunk in lists.chunks]
        lengths = np.concatenate([np.diff(o) for o in offsets])
        flat = [chunk.values.slice(o[0], o[-1] - o[0]) for chunk, o in zip(lists.chunks, offsets)]
    offsets_R1 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets_R1[1:])
    return pa.chunked_array(flat, type=lists.type.value_type), offsets_R1


def find_forbidden(values: np.ndarray, label: LabelColumn) -> np.ndarray:
    """Return flags of the values that a label must not have."""
    bad: np.ndarray
    if label.allowed_values is None:
        bad = ~np.isfinite(as_float32(values))
        return bad | (values < 0) if label.link else bad
    bad = np.ones(len(values), bool)
    for value in label.allowed_values:
        bad &= values != value  # NaN is unequal to everything
    return bad


def describe_allowed(label: LabelColumn) -> str:
    """Describe the values that a label may have, for messages."""
    if label.allowed_values is None:
        return f"a finite number{' from 0 on, as `link: log` needs' if label.link else ''}"
    return " or ".join(f"{value:g}" for value in label.allowed_values)
