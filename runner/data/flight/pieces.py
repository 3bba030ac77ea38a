"""Converts batches to Arrow messages and back.

A message is a record batch of one row, with a list for each array of a batch in the layout of the
batch in memory, so that the trainer uses the received buffers as tensors. Buffers not aligned to
16 bytes, as NumPy's arrays are, are copied: matrix products round differently there, and the run
would differ from one that reads files. gRPC aligns a message that arrives in many
parts, so that large batches are not copied and small ones may be.

Shape legend: B rows of a piece, D dense features, F single ids, L list columns, S sequences, T
tasks, G groups, V values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch
from torch.utils.dlpack import from_dlpack

from runner.batch import Batch
from runner.data.core.columns import Columns
from runner.data.read.arrow_views import view_as_arrow
from runner.data.read.column_arrays import JaggedColumn
from runner.data.read.decode import Rows
from runner.errors import DataError

ALIGNMENT = 16  # bytes
# Only list columns and sequences have offsets, from 0: single ids need none. They come
# last, since their odd lengths would shift the alignment of the arrays after them.
ARRAYS: Mapping[str, type] = {
    "dense": np.float32,  # [B, D]
    "ids": np.int64,  # [F * B + V]: feature-major, the values of lists at the end
    "labels": np.float32,  # [B, T]
    "weights": np.float32,  # [B]
    "rows": np.int64,  # [B]
    "groups": np.int64,  # [B, G]
    "sequences": np.int64,  # [V]
    "list_weights": np.float32,  # [V], or [0] if no column of lists has weights
    "list_offsets": np.int64,  # [L * B + 1]
    "sequence_offsets": np.int64,  # [S * B + 1]
}
MESSAGE = pa.schema(
    [(name, pa.large_list(pa.from_numpy_dtype(dtype))) for name, dtype in ARRAYS.items()]
)


def to_message(batch: Batch, num_singles: int) -> pa.RecordBatch:
    """Return a batch as a message, without copying large arrays."""
    num_ids = num_singles * batch.size
    sparse, sequences = batch.sparse, batch.sequences
    weights = sparse.weights_or_none()
    empty = torch.empty(0)
    arrays = {
        "dense": batch.dense_BD,
        "ids": sparse.values(),
        "list_offsets": sparse.offsets()[num_ids:] - num_ids,
        "list_weights": empty if weights is None else weights[num_ids:],
        "sequences": empty.long() if sequences is None else sequences.values(),
        "sequence_offsets": empty.long() if sequences is None else sequences.offsets(),
        "labels": batch.labels_BT,
        "weights": batch.weights_B,
        "rows": batch.rows_B,
        "groups": batch.groups_BG,
    }
    return pa.RecordBatch.from_arrays(
        [_as_list(arrays[name].numpy().reshape(-1)) for name in ARRAYS], schema=MESSAGE
    )


def _as_list(values: np.ndarray) -> pa.Array:
    """Return an array as a column with a single list."""
    ends = pa.py_buffer(np.array([0, len(values)], np.int64))
    inner = view_as_arrow(values)
    return pa.Array.from_buffers(pa.large_list(inner.type), 1, [None, ends], children=[inner])


def misalignment(message: pa.RecordBatch) -> int:
    """Return by how many bytes the first array of a message is misaligned."""
    buffers = (message.column(name).values.buffers()[1] for name in ARRAYS)
    return next((b.address % ALIGNMENT for b in buffers if b is not None), 0)


def from_message(message: pa.RecordBatch, columns: Columns) -> Rows:
    """Return the rows of a message, as views of its buffers if these are aligned.

    Raises:
        DataError: for lengths that do not match each other or the columns.
    """
    if message.schema != MESSAGE or message.num_rows != 1:
        raise DataError(
            "the server has sent something else than a batch: run the same version of the package "
            "on both"
        )
    arrays = {name: _values(message.column(name)) for name in ARRAYS}
    size, singles = len(arrays["rows"]), len(columns.singles)
    ids = arrays["ids"]
    try:
        lists = _jagged(
            ids[singles * size :],
            arrays["list_offsets"],
            (len(columns.lists), size),
            arrays["list_weights"] if any(c.weights for c in columns.lists) else None,
        )
        sequences = _jagged(
            arrays["sequences"], arrays["sequence_offsets"], (len(columns.sequences), size)
        )
        return Rows(
            dense_DW=arrays["dense"].reshape(size, len(columns.numeric)).T,
            ids_FW=ids[: singles * size].reshape(singles, size),
            lists=lists,
            sequences=sequences,
            labels_WT=arrays["labels"].reshape(size, len(columns.labels)),
            weights_W=arrays["weights"].reshape(size),
            rows_W=arrays["rows"],
            groups_WG=arrays["groups"].reshape(size, len(columns.groups)),
            ids_V=ids,
            sequences_V=arrays["sequences"],
        )
    except ValueError as error:
        raise DataError(f"the server has sent a batch of wrong lengths: {error}") from error


def _values(column: pa.Array) -> np.ndarray:
    """Return the values of the single list of a column, aligned."""
    values = column.values
    buffer = values.buffers()[1]
    dtype = np.dtype(values.type.to_pandas_dtype())
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    if buffer.address % ALIGNMENT:
        return np.frombuffer(buffer, dtype, len(values)).copy()
    # NumPy's own view would be read-only, from which torch makes tensors only with a warning
    return from_dlpack(values).numpy()


def _jagged(
    values_V: np.ndarray,
    offsets: np.ndarray,
    shape: tuple[int, int],
    weights_V: np.ndarray | None = None,
) -> tuple[JaggedColumn, ...]:
    """Return list columns, whose offsets count over the values of all of them.

    Raises:
        ValueError: if the offsets are not those of so many columns, rows and values.
    """
    count, size = shape
    if not count:
        return ()
    if (
        len(offsets) != count * size + 1
        or (offsets[0], offsets[-1]) != (0, len(values_V))
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(f"{len(offsets)} offsets for {len(values_V)} values, {shape} lists")
    if weights_V is not None and len(weights_V) != len(values_V):
        raise ValueError(f"{len(weights_V)} weights for {len(values_V)} values")
    return tuple(
        JaggedColumn(values_V, offsets[n * size : (n + 1) * size + 1], weights_V)
        for n in range(count)
    )
