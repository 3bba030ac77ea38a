"""Blocks -> the rows of a window, transformed, checked, in their final order.

Shape legend: R rows of the window in file order, W rows wanted of it in their final order, D dense
features, F single ids, T tasks, G groups, V values of a list column.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.blocks import READ_ERRORS, BlockFile, first_line, open_blocks
from runner.data.core.columns import CategoricalColumn, Columns, SequenceColumn
from runner.data.core.transforms import as_float32, hash_ids, transform_numeric
from runner.data.read.gather import RowGather, allocate_matrix, gather_lists, gather_rows
from runner.data.read.index import BlockIndex
from runner.errors import DataError

MAX_OPEN_FILES = 32
MAX_OPEN_CHUNKS = 1 << 17  # columns x blocks of all open files; a footer of Parquet: 900 B each


@dataclass(frozen=True)
class JaggedColumn:
    """The values of W lists, end to end."""

    values_V: np.ndarray
    offsets_W1: np.ndarray  # int64, from 0
    weights_V: np.ndarray | None = None  # float32


@dataclass(frozen=True)
class Rows:
    """Checked and transformed rows, one array a role. Batches are slices of it."""

    dense_DW: np.ndarray  # float32
    ids_FW: np.ndarray  # int32 where the tables allow: half the memory traffic of int64
    lists: tuple[JaggedColumn, ...]
    sequences: tuple[JaggedColumn, ...]
    labels_WT: np.ndarray  # float32
    weights_W: np.ndarray | None  # float32; None: no weight column
    rows_W: np.ndarray  # int64, number in the split
    groups_WG: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.rows_W)


class BlockReader:
    """Reads blocks of one split. Keeps the last few files open; for one thread at a time."""

    def __init__(self, index: BlockIndex, columns: Columns) -> None:
        self._index = index
        self._columns = columns
        self._open: OrderedDict[int, BlockFile] = OrderedDict()

    def read_rows(self, blocks: np.ndarray, order: np.ndarray | slice) -> Rows:
        """The rows `order` picks from `blocks` laid end to end.

        Raises: DataError naming file, row group, column, row and value of the first bad one.
        """
        table = self.read_table(blocks, self._columns.names)
        at = _Place(self._index, blocks)
        columns, num_rows = self._columns, table.num_rows
        pick = RowGather.from_order(order, num_rows)
        labels_RT = np.empty((num_rows, len(columns.labels)), np.float32)
        for t, label in enumerate(columns.labels):
            raw = _numbers(table[label.name], label.name, None, at)
            bad = _not_allowed(raw, label.allowed_values)
            if bad.any():
                allowed = (
                    "a finite number"
                    if label.allowed_values is None
                    else _spoken(label.allowed_values)
                )
                at.fail(label.name, raw, bad, f"allowed is {allowed}")
            labels_RT[:, t] = raw
        groups_RG = np.empty((num_rows, len(columns.groups)), np.int64)
        for g, name in enumerate(columns.groups):
            groups_RG[:, g] = _numbers(table[name], name, None, at)
        return Rows(
            dense_DW=self._dense(table, pick, at),
            ids_FW=self._singles(table, pick, at),
            lists=tuple(_lists(table, c, order, at) for c in columns.lists),
            sequences=tuple(_lists(table, c, order, at) for c in columns.sequences),
            labels_WT=gather_rows(labels_RT, order),
            weights_W=self._weights(table, order, at),
            rows_W=gather_rows(at.numbers(), order),
            groups_WG=gather_rows(groups_RG, order),
        )

    def read_table(self, blocks: np.ndarray, names: Collection[str]) -> pa.Table:
        """Columns of blocks laid end to end, as they are in the files."""
        parts = []
        for number in np.unique(self._index.file_N[blocks]):
            of_file = blocks[self._index.file_N[blocks] == number]
            parts.append(self._read(int(number), of_file, list(names)))
        return pa.concat_tables(parts)

    def _read(self, number: int, blocks: np.ndarray, names: list[str]) -> pa.Table:
        path = self._index.files[number]
        groups = [int(g) for g in self._index.group_N[blocks]]
        try:
            table = self._file(number).read(groups, names)
        except READ_ERRORS as error:
            where = f"{self._file(number).block_kind} {self._broken_group(number, groups)}"
            raise DataError(f"{path}: {where}: {first_line(error)}") from error
        expected = int(self._index.rows_N[blocks].sum())
        if table.num_rows != expected:
            raise DataError(f"{path}: changed while in use: {table.num_rows} rows, not {expected}")
        return table

    def _broken_group(self, number: int, groups: list[int]) -> int | str:
        for group in groups:
            try:
                self._file(number).read([group], self._columns.names)
            except READ_ERRORS:
                return group
        return "unknown"  # an error that passed: the message still has the first one

    def _file(self, number: int) -> BlockFile:
        if number not in self._open:
            opened = open_blocks(self._index.files[number])
            while self._open and self._is_full(opened):
                self._open.popitem(last=False)[1].close()
            self._open[number] = opened
        self._open.move_to_end(number)
        return self._open[number]

    def _is_full(self, opened: BlockFile) -> bool:
        """Whether one more would be too many, by their number or by their footers' size."""
        files = (*self._open.values(), opened)
        num_chunks = sum(len(file.schema) * len(file.rows_per_block) for file in files)
        return len(self._open) >= MAX_OPEN_FILES or num_chunks > MAX_OPEN_CHUNKS

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _dense(self, table: pa.Table, pick: RowGather, at: _Place) -> np.ndarray:
        dense_DW = allocate_matrix(len(self._columns.numeric), pick.num_selected, np.float32)
        for d, numeric in enumerate(self._columns.numeric):
            raw = _numbers(table[numeric.name], numeric.name, numeric.default, at)
            plain = numeric.is_identity and (raw.dtype == np.float32 or raw.dtype.kind in "iu")
            x = raw if plain else transform_numeric(numeric, raw)
            pick.gather_into(dense_DW[d], x)  # makes float32 of integers
            if numeric.preserves_finite and raw.dtype.kind != "f":
                continue  # integers are finite, and so is what becomes of them
            # Minimum and maximum are NaN where anything is: no array of flags is needed.
            if not (np.isfinite(x.min()) and np.isfinite(x.max())):
                at.fail(numeric.name, raw, ~np.isfinite(x), "not finite after its transforms")
            if numeric.clips and not (np.isfinite(raw.min()) and np.isfinite(raw.max())):
                at.fail(
                    numeric.name, raw, ~np.isfinite(raw), "not finite, whatever it is clipped to"
                )
        return dense_DW

    def _singles(self, table: pa.Table, pick: RowGather, at: _Place) -> np.ndarray:
        singles = self._columns.singles
        large = any(c.num_rows > 2**31 for c in singles)
        ids_FW = allocate_matrix(len(singles), pick.num_selected, np.int64 if large else np.int32)
        for f, c in enumerate(singles):
            pick.gather_into(ids_FW[f], _ids(_coded(table[c.name], c, at), c, at.fail))
        return ids_FW

    def _weights(self, table: pa.Table, order: np.ndarray | slice, at: _Place) -> np.ndarray | None:
        name = self._columns.weight
        if name is None:
            return None
        raw = _numbers(table[name], name, None, at)
        weights = as_float32(raw)
        bad = ~(np.isfinite(weights) & (raw >= 0))
        if bad.any():
            at.fail(name, raw, bad, "a weight is finite and not negative")
        return gather_rows(weights, order)


@dataclass(frozen=True)
class _Place:
    """Where rows of a window came from; only looked at in full when something is wrong."""

    index: BlockIndex
    blocks: np.ndarray

    def numbers(self) -> np.ndarray:
        """Number in the split of every row."""
        starts, rows = self.index.start_N[self.blocks], self.index.rows_N[self.blocks]
        shift = starts - (np.cumsum(rows) - rows)
        return np.arange(rows.sum()) + np.repeat(shift, rows)

    def fail(self, column: str, values: np.ndarray, bad: np.ndarray, rule: str) -> NoReturn:
        """Raises: DataError for the first bad row."""
        row = int(np.flatnonzero(bad)[0])
        self.fail_at(row, column, f"value {values[row]}: {rule}")

    def fail_at(self, row: int, column: str, problem: str) -> NoReturn:
        ends = np.cumsum(self.index.rows_N[self.blocks])
        place = int(np.searchsorted(ends, row, side="right"))
        block = self.blocks[place]
        within = row - int(ends[place] - self.index.rows_N[block])
        path: Path = self.index.files[self.index.file_N[block]]
        group = int(self.index.group_N[block])
        raise DataError(f"{path}: row group {group}, row {within}, column {column!r}: {problem}")


def _numbers(values: pa.ChunkedArray, name: str, default: float | None, at: _Place) -> np.ndarray:
    """One NumPy array, missing values filled."""
    if not values.null_count:
        return _joined(values)
    if default is None:
        missing = values.is_null().to_numpy()
        at.fail_at(int(np.flatnonzero(missing)[0]), name, "is missing and has no default")
    if not pa.types.is_floating(values.type) and default != int(default):
        values = values.cast(pa.float64())
    return _joined(pc.fill_null(values, _scalar(default, values.type)))


@lru_cache(maxsize=64)
def _scalar(value: float, type_: pa.DataType) -> pa.Scalar:
    """Kept: Arrow looks for pandas on the disk every time one is made."""
    return pa.scalar(value).cast(type_)


def _coded(
    values: pa.ChunkedArray, c: CategoricalColumn | SequenceColumn, at: _Place
) -> np.ndarray:
    """Ids as they are or hashed, missing values filled."""
    if not isinstance(c, CategoricalColumn) or c.encode == "as_is":
        return _numbers(values, c.name, c.default, at)
    if not values.null_count or c.default is None:
        return hash_ids(_numbers(values, c.name, None, at), c.num_rows, c.salt)
    missing = values.is_null().to_numpy()  # the default is an id, so it comes after the hash
    return np.where(
        missing, c.default, hash_ids(_numbers(values, c.name, 0, at), c.num_rows, c.salt)
    )


def _joined(values: pa.ChunkedArray) -> np.ndarray:
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _ids(
    ids: np.ndarray,
    c: CategoricalColumn | SequenceColumn,
    fail: Callable[[str, np.ndarray, np.ndarray, str], None],
) -> np.ndarray:
    """Fused tables map an id out of range to row 0 without an error: refuse it here."""
    if ids.dtype.kind == "i":  # seen as unsigned, a negative id is larger than any table
        wrong = len(ids) > 0 and int(ids.view(ids.dtype.str.replace("i", "u")).max()) >= c.num_rows
    else:
        wrong = len(ids) > 0 and (ids.min() < 0 or ids.max() >= c.num_rows)
    if wrong:
        bad = (ids < 0) | (ids >= c.num_rows)
        fail(c.name, ids, bad, f"its table has the rows 0 to {c.num_rows - 1}")
    return ids


def _lists(
    table: pa.Table, c: CategoricalColumn | SequenceColumn, order: np.ndarray | slice, at: _Place
) -> JaggedColumn:
    """The wanted rows of a list column; a missing list is an empty one."""
    flat, offsets_R1 = _laid_flat(table[c.name])

    def fail(name: str, ids: np.ndarray, bad: np.ndarray, rule: str) -> None:
        place = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(offsets_R1, place, side="right")) - 1
        at.fail_at(row, name, f"value {ids[place]}: {rule}")

    if flat.null_count and c.default is None:
        missing = flat.is_null().to_numpy()
        fail(c.name, np.where(missing, "null", ""), missing, "missing and has no default")
    values_V, positions, offsets_W1 = gather_lists(
        _ids(_coded(flat, c, at), c, fail), offsets_R1, order
    )
    weights_V = None
    if isinstance(c, CategoricalColumn) and c.weights:
        weights, own_R1 = _laid_flat(table[c.weights])
        assert np.array_equal(own_R1, offsets_R1), "written side by side"
        weights_V = gather_rows(_joined(weights), positions)
    return JaggedColumn(values_V, offsets_W1, weights_V)


def _laid_flat(lists: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """All values end to end, and where each row's begin."""
    if lists.null_count or pa.types.is_fixed_size_list(lists.type):
        lengths = _joined(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        flat = [chunk.flatten() for chunk in lists.chunks]
    else:
        offsets = [chunk.offsets.to_numpy() for chunk in lists.chunks]
        lengths = np.concatenate([np.diff(o) for o in offsets])
        flat = [chunk.values.slice(o[0], o[-1] - o[0]) for chunk, o in zip(lists.chunks, offsets)]
    offsets_R1 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets_R1[1:])
    return pa.chunked_array(flat, type=lists.type.value_type), offsets_R1


def _not_allowed(values: np.ndarray, allowed: tuple[float, ...] | None) -> np.ndarray:
    if allowed is None:
        return ~np.isfinite(as_float32(values))
    bad = np.ones(len(values), bool)
    for value in allowed:
        bad &= values != value  # NaN differs from everything
    return bad


def _spoken(allowed: tuple[float, ...]) -> str:
    return " or ".join(f"{value:g}" for value in allowed)
