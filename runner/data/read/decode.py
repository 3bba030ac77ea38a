"""Decoding of blocks into the rows of a window: transformed, checked and in their final order.

Shape legend: R rows of the window in file order, W rows selected from it in their final order, D
dense features, F single ids, T tasks, G groups, V values of a list column.
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
MAX_OPEN_CHUNKS = (
    1 << 17
)  # columns x blocks of all open files; each takes 900 B in a Parquet footer


@dataclass(frozen=True)
class JaggedColumn:
    """The values of W lists, concatenated."""

    values_V: np.ndarray
    offsets_W1: np.ndarray  # int64, from 0
    weights_V: np.ndarray | None = None  # float32


@dataclass(frozen=True)
class Rows:
    """Checked and transformed rows, with an array for each role; batches are slices of them."""

    dense_DW: np.ndarray  # float32
    ids_FW: np.ndarray  # int32 where the tables' sizes allow: half the memory traffic of int64
    lists: tuple[JaggedColumn, ...]
    sequences: tuple[JaggedColumn, ...]
    labels_WT: np.ndarray  # float32
    weights_W: np.ndarray | None  # float32; None: no weight column
    rows_W: np.ndarray  # int64, the row's number in the split
    groups_WG: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.rows_W)


class BlockReader:
    """Reads blocks of one split, for one thread at a time; it keeps the last few files open."""

    def __init__(self, index: BlockIndex, columns: Columns) -> None:
        self._index = index
        self._columns = columns
        self._open_files: OrderedDict[int, BlockFile] = OrderedDict()

    def read_rows(self, blocks: np.ndarray, order: np.ndarray | slice) -> Rows:
        """Return the rows that `order` selects from the concatenated `blocks`.

        Raises:
            DataError: naming file, row group, column, row and value of the first bad value.
        """
        table = self.read_table(blocks, self._columns.names)
        source = _RowSource(self._index, blocks)
        columns, num_rows = self._columns, table.num_rows
        selection = RowGather.from_order(order, num_rows)
        labels_RT = np.empty((num_rows, len(columns.labels)), np.float32)
        for t, label in enumerate(columns.labels):
            raw = _read_numbers(table[label.name], label.name, None, source)
            bad = _is_forbidden(raw, label.allowed_values)
            if bad.any():
                allowed = _describe_values(label.allowed_values)
                source.fail(label.name, raw, bad, f"allowed is {allowed}")
            labels_RT[:, t] = raw
        groups_RG = np.empty((num_rows, len(columns.groups)), np.int64)
        for g, name in enumerate(columns.groups):
            groups_RG[:, g] = _read_numbers(table[name], name, None, source)
        return Rows(
            dense_DW=self._gather_dense(table, selection, source),
            ids_FW=self._gather_singles(table, selection, source),
            lists=tuple(_gather_list_column(table, c, order, source) for c in columns.lists),
            sequences=tuple(
                _gather_list_column(table, c, order, source) for c in columns.sequences
            ),
            labels_WT=gather_rows(labels_RT, order),
            weights_W=self._gather_weights(table, order, source),
            rows_W=gather_rows(source.row_numbers(), order),
            groups_WG=gather_rows(groups_RG, order),
        )

    def read_table(self, blocks: np.ndarray, names: Collection[str]) -> pa.Table:
        """Return columns of the concatenated blocks, as they are in the files."""
        tables = []
        for number in np.unique(self._index.file_N[blocks]):
            blocks_of_file = blocks[self._index.file_N[blocks] == number]
            tables.append(self._read_from_file(int(number), blocks_of_file, list(names)))
        return pa.concat_tables(tables)

    def _read_from_file(self, number: int, blocks: np.ndarray, names: list[str]) -> pa.Table:
        path = self._index.files[number]
        groups = [int(g) for g in self._index.group_N[blocks]]
        try:
            table = self._open_file(number).read(groups, names)
        except READ_ERRORS as error:
            kind, block = self._open_file(number).block_kind, self._find_unreadable(number, groups)
            raise DataError(f"{path}: {kind} {block}: {first_line(error)}") from error
        expected = int(self._index.rows_N[blocks].sum())
        if table.num_rows != expected:
            raise DataError(f"{path}: changed while in use: {table.num_rows} rows, not {expected}")
        return table

    def _find_unreadable(self, number: int, groups: list[int]) -> int | str:
        for group in groups:
            try:
                self._open_file(number).read([group], self._columns.names)
            except READ_ERRORS:
                return group
        return "unknown"  # the error was transient; the message still has its text

    def _open_file(self, number: int) -> BlockFile:
        if number not in self._open_files:
            opened = open_blocks(self._index.files[number])
            while self._open_files and self._is_full(opened):
                self._open_files.popitem(last=False)[1].close()
            self._open_files[number] = opened
        self._open_files.move_to_end(number)
        return self._open_files[number]

    def _is_full(self, opened: BlockFile) -> bool:
        """Return whether one more file would be too many, by number or by the size of footers."""
        files = (*self._open_files.values(), opened)
        num_chunks = sum(len(file.schema) * len(file.rows_per_block) for file in files)
        return len(self._open_files) >= MAX_OPEN_FILES or num_chunks > MAX_OPEN_CHUNKS

    def close(self) -> None:
        while self._open_files:
            self._open_files.popitem()[1].close()

    def _gather_dense(
        self, table: pa.Table, selection: RowGather, source: _RowSource
    ) -> np.ndarray:
        dense_DW = allocate_matrix(len(self._columns.numeric), selection.num_selected, np.float32)
        for d, numeric in enumerate(self._columns.numeric):
            raw = _read_numbers(table[numeric.name], numeric.name, numeric.default, source)
            is_plain = numeric.is_identity and (raw.dtype == np.float32 or raw.dtype.kind in "iu")
            x = raw if is_plain else transform_numeric(numeric, raw)
            selection.gather_into(dense_DW[d], x)  # converts integers to float32
            if numeric.preserves_finite and raw.dtype.kind != "f":
                continue  # integers are finite and stay so
            # Minimum and maximum are NaN if any value is, so that no array of flags is needed.
            if not (np.isfinite(x.min()) and np.isfinite(x.max())):
                source.fail(numeric.name, raw, ~np.isfinite(x), "not finite after its transforms")
            if numeric.clips and not (np.isfinite(raw.min()) and np.isfinite(raw.max())):
                source.fail(
                    numeric.name, raw, ~np.isfinite(raw), "not finite, which clipping would hide"
                )
        return dense_DW

    def _gather_singles(
        self, table: pa.Table, selection: RowGather, source: _RowSource
    ) -> np.ndarray:
        singles = self._columns.singles
        large = any(c.num_rows > 2**31 for c in singles)
        ids_FW = allocate_matrix(
            len(singles), selection.num_selected, np.int64 if large else np.int32
        )
        for f, c in enumerate(singles):
            selection.gather_into(
                ids_FW[f], _check_ids(_encode_ids(table[c.name], c, source), c, source.fail)
            )
        return ids_FW

    def _gather_weights(
        self, table: pa.Table, order: np.ndarray | slice, source: _RowSource
    ) -> np.ndarray | None:
        name = self._columns.weight
        if name is None:
            return None
        raw = _read_numbers(table[name], name, None, source)
        weights = as_float32(raw)
        bad = ~(np.isfinite(weights) & (raw >= 0))
        if bad.any():
            source.fail(name, raw, bad, "a weight is finite and not negative")
        return gather_rows(weights, order)


@dataclass(frozen=True)
class _RowSource:
    """Where the rows of a window came from."""

    index: BlockIndex
    blocks: np.ndarray

    def row_numbers(self) -> np.ndarray:
        """Return the number in the split of every row."""
        starts, rows = self.index.start_N[self.blocks], self.index.rows_N[self.blocks]
        shift = starts - (np.cumsum(rows) - rows)
        numbers: np.ndarray = np.arange(rows.sum()) + np.repeat(shift, rows)
        return numbers

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


def _read_numbers(
    values: pa.ChunkedArray, name: str, default: float | None, source: _RowSource
) -> np.ndarray:
    """Return a column as one NumPy array, with missing values filled."""
    if not values.null_count:
        return _to_numpy(values)
    if default is None:
        missing = values.is_null().to_numpy()
        source.fail_at(int(np.flatnonzero(missing)[0]), name, "is missing and has no default")
    if not pa.types.is_floating(values.type) and default != int(default):
        values = values.cast(pa.float64())
    return _to_numpy(pc.fill_null(values, _make_scalar(default, values.type)))


@lru_cache(maxsize=64)
def _make_scalar(value: float, type_: pa.DataType) -> pa.Scalar:
    """Return an Arrow scalar from a cache: Arrow looks for pandas on disk whenever one is made."""
    return pa.scalar(value).cast(type_)


def _encode_ids(
    values: pa.ChunkedArray, c: CategoricalColumn | SequenceColumn, source: _RowSource
) -> np.ndarray:
    """Return ids as they are or hashed, with missing values filled."""
    if not isinstance(c, CategoricalColumn) or c.encode == "as_is":
        return _read_numbers(values, c.name, c.default, source)
    if not values.null_count or c.default is None:
        return hash_ids(_read_numbers(values, c.name, None, source), c.num_rows, c.salt)
    missing = values.is_null().to_numpy()
    hashed = hash_ids(_read_numbers(values, c.name, 0, source), c.num_rows, c.salt)
    return np.where(missing, c.default, hashed)  # the default is an id: it is not hashed


def _to_numpy(values: pa.ChunkedArray) -> np.ndarray:
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _check_ids(
    ids: np.ndarray,
    c: CategoricalColumn | SequenceColumn,
    fail: Callable[[str, np.ndarray, np.ndarray, str], None],
) -> np.ndarray:
    """Refuse ids out of range, which fused tables would map to row 0 without an error."""
    if ids.dtype.kind == "i":  # viewed as unsigned, a negative id is larger than any table
        wrong = len(ids) > 0 and int(ids.view(ids.dtype.str.replace("i", "u")).max()) >= c.num_rows
    else:
        wrong = len(ids) > 0 and (ids.min() < 0 or ids.max() >= c.num_rows)
    if wrong:
        bad = (ids < 0) | (ids >= c.num_rows)
        fail(c.name, ids, bad, f"its table has the rows 0 to {c.num_rows - 1}")
    return ids


def _gather_list_column(
    table: pa.Table,
    c: CategoricalColumn | SequenceColumn,
    order: np.ndarray | slice,
    source: _RowSource,
) -> JaggedColumn:
    """Return the selected rows of a list column; a missing list becomes an empty one."""
    flat, offsets_R1 = _flatten_lists(table[c.name])

    def fail(name: str, ids: np.ndarray, bad: np.ndarray, rule: str) -> None:
        position = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(offsets_R1, position, side="right")) - 1
        source.fail_at(row, name, f"value {ids[position]}: {rule}")

    if flat.null_count and c.default is None:
        missing = flat.is_null().to_numpy()
        fail(c.name, np.where(missing, "null", ""), missing, "missing and has no default")
    values_V, positions, offsets_W1 = gather_lists(
        _check_ids(_encode_ids(flat, c, source), c, fail), offsets_R1, order
    )
    weights_V = None
    if isinstance(c, CategoricalColumn) and c.weights:
        weights, weight_offsets_R1 = _flatten_lists(table[c.weights])
        assert np.array_equal(weight_offsets_R1, offsets_R1), "preparation writes them in pairs"
        weights_V = gather_rows(_to_numpy(weights), positions)
    return JaggedColumn(values_V, offsets_W1, weights_V)


def _flatten_lists(lists: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return the concatenated values of all lists, and R + 1 offsets of the rows in them."""
    if lists.null_count or pa.types.is_fixed_size_list(lists.type):
        lengths = _to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        flat = [chunk.flatten() for chunk in lists.chunks]
    else:
        offsets = [chunk.offsets.to_numpy() for chunk in lists.chunks]
        lengths = np.concatenate([np.diff(o) for o in offsets])
        flat = [chunk.values.slice(o[0], o[-1] - o[0]) for chunk, o in zip(lists.chunks, offsets)]
    offsets_R1 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets_R1[1:])
    return pa.chunked_array(flat, type=lists.type.value_type), offsets_R1


def _is_forbidden(values: np.ndarray, allowed: tuple[float, ...] | None) -> np.ndarray:
    bad: np.ndarray
    if allowed is None:
        bad = ~np.isfinite(as_float32(values))
        return bad
    bad = np.ones(len(values), bool)
    for value in allowed:
        bad &= values != value  # NaN is unequal to everything
    return bad


def _describe_values(allowed: tuple[float, ...] | None) -> str:
    if allowed is None:
        return "a finite number"
    return " or ".join(f"{value:g}" for value in allowed)
