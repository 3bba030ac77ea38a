"""Gathers the selected rows of a window in their final order.

Shape legend: R rows of the window in file order, W selected rows, V values of a list column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


def allocate_matrix(num_rows: int, num_columns: int, type_: type) -> np.ndarray:
    """Return a matrix with undefined values.

    Arrow's allocator reuses pages from one window to the next; new pages from the system would
    cost more than filling the matrix.
    """
    size = num_rows * num_columns
    buffer = pa.allocate_buffer(size * np.dtype(type_).itemsize)
    return np.frombuffer(buffer, type_, size).reshape(num_rows, num_columns)


@dataclass(frozen=True)
class RowGather:
    """A selection of rows, applied column by column.

    A column of a window fits into the second-level cache but a matrix of all columns does not, so
    gathering columns once per window is several times cheaper than rows, or than in every batch.
    """

    order: np.ndarray | slice
    num_selected: int

    @classmethod
    def from_order(cls, order: np.ndarray | slice, num_rows: int) -> RowGather:
        selected = range(num_rows)[order] if isinstance(order, slice) else order
        return cls(order, len(selected))

    def gather_into(self, out_W: np.ndarray, values_R: np.ndarray) -> None:
        """Write the selected rows of a column into an array, possibly of another type."""
        if isinstance(self.order, slice):
            out_W[:] = values_R[self.order]
        elif values_R.dtype.itemsize < out_W.dtype.itemsize:
            # A narrow column is gathered before it is converted: more of it fits into the cache.
            out_W[:] = np.take(values_R, self.order, mode="wrap")
        else:  # converted before gathering, which then writes directly into the output
            column_R = values_R.astype(out_W.dtype, copy=False)
            np.take(column_R, self.order, out=out_W, mode="wrap")  # all indices are valid


def gather_rows(values: np.ndarray, order: np.ndarray | slice) -> np.ndarray:
    """Return the rows `order` of an array; a view if `order` is a slice."""
    if isinstance(order, slice):
        return values[order]
    return np.take(values, order, axis=0, mode="wrap")  # needs no buffer; all indices are valid


def gather_lists(
    values: np.ndarray, offsets_R1: np.ndarray, order: np.ndarray | slice
) -> tuple[np.ndarray, np.ndarray | slice, np.ndarray]:
    """Return the values of the selected lists, their positions in `values`, and W + 1 offsets."""
    starts, stops = gather_rows(offsets_R1[:-1], order), gather_rows(offsets_R1[1:], order)
    lengths = stops - starts
    offsets_W1 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets_W1[1:])
    if isinstance(order, slice):
        at = slice(starts[0], starts[0] + offsets_W1[-1])
        return values[at], at, offsets_W1
    # Positions are a running sum of steps: 1 within a list, a jump from the end of one to the next.
    non_empty = np.flatnonzero(lengths != 0)  # with flags it takes a quarter of the time
    steps = np.ones(offsets_W1[-1], np.int64)
    if len(non_empty):
        jumps_from = np.concatenate([[0], stops[non_empty][:-1] - 1])
        steps[offsets_W1[non_empty]] = starts[non_empty] - jumps_from
    positions = np.cumsum(steps, out=steps)
    return np.take(values, positions, mode="wrap"), positions, offsets_W1
