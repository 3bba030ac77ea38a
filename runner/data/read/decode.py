"""Decodes blocks into the rows of a window: transformed, checked and in their final order.

Shape legend: R rows of the window in file order, W rows selected from it in their final order, D
dense features, F single ids, T tasks, G groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from runner.data.core.blocks import READ_ERRORS, BlockFile, open_blocks
from runner.data.core.columns import Columns
from runner.data.core.transforms import as_float32, transform_numeric
from runner.data.read.column_arrays import (
    JaggedColumn,
    RowSource,
    check_ids,
    describe_allowed,
    encode_ids,
    find_forbidden,
    gather_list_column,
    read_numbers,
)
from runner.data.read.gather import RowGather, allocate_matrix, gather_rows
from runner.data.read.index import BlockIndex
from runner.errors import DataError, first_line
from runner.machine.free_memory import available_memory_bytes

MAX_OPEN_FILES = 128  # of the 1,024 that a process may usually open, for several threads
# Columns x blocks of all open files; each takes 900 B in a Parquet footer. A shuffled epoch reads
# from all files in turn: with too few open files most of its time goes into parsing footers.
MAX_OPEN_CHUNKS, ALWAYS_OPEN_CHUNKS, CHUNK_BYTES = 1 << 20, 1 << 17, 900
SHARE_OF_MEMORY = 1 / 64  # of memory for the footers of a reader, in excess of ALWAYS_OPEN_CHUNKS


@dataclass(frozen=True)
class Rows:
    """Checked and transformed rows, with an array for each role; batches are slices of them."""

    dense_DW: np.ndarray  # float32
    ids_FW: np.ndarray  # int32 if the tables' sizes allow it: half the memory traffic of int64
    lists: tuple[JaggedColumn, ...]
    sequences: tuple[JaggedColumn, ...]
    labels_WT: np.ndarray  # float32
    weights_W: np.ndarray | None  # float32; None: no weight column
    rows_W: np.ndarray  # int64, the row's number in the split
    groups_WG: np.ndarray  # int64
    # For a batch that arrived complete, all ids as int64 in its layout: ids_FW, lists and sequences
    # are views of them
    ids_V: np.ndarray | None = None
    sequences_V: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows_W)


class BlockReader:
    """Reads blocks of one split, in one thread at a time; keeps the most recent files open."""

    def __init__(self, index: BlockIndex, columns: Columns) -> None:
        self._index = index
        self._columns = columns
        self._open_files: OrderedDict[int, BlockFile] = OrderedDict()
        room = available_memory_bytes() * SHARE_OF_MEMORY / CHUNK_BYTES
        self._max_chunks = min(MAX_OPEN_CHUNKS, max(ALWAYS_OPEN_CHUNKS, room))

    def read_rows(self, blocks: np.ndarray, order: np.ndarray | slice) -> Rows:
        """Return the rows that `order` selects from the concatenated `blocks`.

        Raises:
            DataError: naming file, row group, column, row and value of the first bad value.
        """
        table = self.read_table(blocks, self._columns.names)
        source = RowSource(self._index, blocks)
        columns, num_rows = self._columns, table.num_rows
        selection = RowGather.from_order(order, num_rows)
        labels_RT = np.empty((num_rows, len(columns.labels)), np.float32)
        for t, label in enumerate(columns.labels):
            raw = read_numbers(table[label.name], label.name, None, source)
            bad = find_forbidden(raw, label)
            if bad.any():
                source.fail(label.name, raw, bad, f"allowed is {describe_allowed(label)}")
            labels_RT[:, t] = raw
        groups_RG = np.empty((num_rows, len(columns.groups)), np.int64)
        for g, name in enumerate(columns.groups):
            groups_RG[:, g] = read_numbers(table[name], name, None, source)
        return Rows(
            dense_DW=self._gather_dense(table, selection, source),
            ids_FW=self._gather_singles(table, selection, source),
            lists=tuple(gather_list_column(table, c, order, source) for c in columns.lists),
            sequences=tuple(gather_list_column(table, c, order, source) for c in columns.sequences),
            labels_WT=gather_rows(labels_RT, order),
            weights_W=self._gather_weights(table, order, source),
            rows_W=gather_rows(source.row_numbers(), order),
            groups_WG=gather_rows(groups_RG, order),
        )

    def read_table(self, blocks: np.ndarray, names: Collection[str]) -> pa.Table:
        """Return columns of the concatenated blocks, unchanged."""
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
            raise DataError(
                f"{path}: was changed while it was read: {table.num_rows} rows, not {expected}; "
                "start again"
            )
        return table

    def _find_unreadable(self, number: int, groups: list[int]) -> int | str:
        for group in groups:
            try:
                self._open_file(number).read([group], self._columns.names)
            except READ_ERRORS:
                return group
        return "unknown"  # the error was transient; its text is still in the message

    def _open_file(self, number: int) -> BlockFile:
        if number not in self._open_files:
            opened = open_blocks(path := self._index.files[number])
            if self._index.footers and opened.footer_hash != self._index.footers[number]:
                opened.close()
                rows = int(self._index.rows_N[self._index.file_N == number].sum())
                raise DataError(
                    f"{path}: was changed while it was read: {sum(opened.rows_per_block)} rows, "
                    f"not the {rows} of before; start again"
                )
            while self._open_files and self._is_full(opened):
                self._open_files.popitem(last=False)[1].close()
            self._open_files[number] = opened
        self._open_files.move_to_end(number)
        return self._open_files[number]

    def _is_full(self, opened: BlockFile) -> bool:
        """Return whether another file would exceed the limit of files or of the size of footers."""
        files = (*self._open_files.values(), opened)
        num_chunks = sum(len(file.schema) * len(file.rows_per_block) for file in files)
        return len(self._open_files) >= MAX_OPEN_FILES or num_chunks > self._max_chunks

    def close(self) -> None:
        while self._open_files:
            self._open_files.popitem()[1].close()

    def _gather_dense(self, table: pa.Table, selection: RowGather, source: RowSource) -> np.ndarray:
        dense_DW = allocate_matrix(len(self._columns.numeric), selection.num_selected, np.float32)
        for d, numeric in enumerate(self._columns.numeric):
            raw = read_numbers(table[numeric.name], numeric.name, numeric.default, source)
            is_plain = numeric.is_identity and (raw.dtype == np.float32 or raw.dtype.kind in "iu")
            x = raw if is_plain else transform_numeric(numeric, raw)
            selection.gather_into(dense_DW[d], x)  # converts integers to float32
            if numeric.preserves_finite and raw.dtype.kind != "f":
                continue  # integers are finite and remain so
            # Minimum and maximum are NaN if any value is, so no array of flags is needed.
            if not (np.isfinite(x.min()) and np.isfinite(x.max())):
                source.fail(numeric.name, raw, ~np.isfinite(x), numeric.finite_rule)
            if numeric.clips and not (np.isfinite(raw.min()) and np.isfinite(raw.max())):
                source.fail(
                    numeric.name, raw, ~np.isfinite(raw), "not finite, which clipping would hide"
                )
        return dense_DW

    def _gather_singles(
        self, table: pa.Table, selection: RowGather, source: RowSource
    ) -> np.ndarray:
        singles = self._columns.singles
        large = any(c.num_rows > 2**31 or c.encode == "growing" for c in singles)
        type_ = np.int64 if large else np.int32
        ids_FW = allocate_matrix(len(singles), selection.num_selected, type_)
        for f, c in enumerate(singles):
            ids = check_ids(encode_ids(table[c.name], c, source), c, source.fail)
            selection.gather_into(ids_FW[f], ids)
        return ids_FW

    def _gather_weights(
        self, table: pa.Table, order: np.ndarray | slice, source: RowSource
    ) -> np.ndarray | None:
        name = self._columns.weight
        if name is None:
            return None
        raw = read_numbers(table[name], name, None, source)
        weights = as_float32(raw)
        bad = ~(np.isfinite(weights) & (raw >= 0))
        if bad.any():
            source.fail(name, raw, bad, "a weight is finite and not negative")
        return gather_rows(weights, order)


class InMemoryReader(BlockReader):
    """Returns rows that are already in memory."""

    def __init__(self, index: BlockIndex, columns: Columns, table: pa.Table) -> None:
        super().__init__(index, columns)
        self._table = table

    def read_table(self, blocks: np.ndarray, names: Collection[str]) -> pa.Table:
        return self._table.select(list(names))
