"""Collation of row spans into a `Batch`: the only module of the data layer that makes tensors.

Copies after decoding: ids once (into the feature-major vector that tables take), dense values
once (transposed to rows), lists once; labels and row numbers not at all (they are views of the
window) unless a batch spans two windows. Batches collated by a data server are not copied.

Shape legend: B rows of a batch, W rows of a window, D dense features, F single ids, T tasks,
G groups, V values of a list column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.data.core.columns import GROUP_PREFIX, Columns
from runner.data.read.column_arrays import JaggedColumn
from runner.data.read.decode import Rows
from runner.data.read.stream import BatchSlice, RowSpan


def build_schema(columns: Columns) -> Schema:
    """Return the schema of the declared columns, for a model."""
    return Schema(
        dense=tuple(c.name for c in columns.numeric),
        sparse=tuple(
            SparseFeature(
                c.name,
                c.num_rows,
                table=c.table,
                is_list=c.is_list,
                weighted=c.weights is not None,
                mean_length=c.mean_length,
                pooling=c.pooling,
                num_special=c.num_special,
            )
            for c in (*columns.singles, *columns.lists)
        ),
        tasks=tuple(
            TaskSpec(label.name, label.kind, label.one_of, label.link, label.scale)
            for label in columns.labels
        ),
        sequences=tuple(
            SequenceFeature(c.name, c.num_rows, c.max_length, c.table, c.overlaps)
            for c in columns.sequences
        ),
        groups=tuple(name.removeprefix(GROUP_PREFIX) for name in columns.groups),
    )


def collate(
    batch_slice: BatchSlice,
    sparse_keys: list[str],
    cursor: DataPosition,
    sequence_keys: Sequence[str],
) -> Batch:
    """Make one batch.

    Args:
        sparse_keys: names of the sparse features, single ids before lists.
        cursor: position after the batch.
    """
    spans = batch_slice.spans
    labels_BT = _concatenate([rows.labels_WT[a:b] for rows, a, b in spans])
    rows_B = _concatenate([rows.rows_W[a:b] for rows, a, b in spans])
    size = labels_BT.shape[0]
    weights_B = _collate_weights(spans, size)
    if batch_slice.is_padding:
        weights_B, rows_B = torch.zeros(1), torch.full((1,), -1)
    return Batch(
        dense_BD=_collate_dense(spans, size),
        sparse=_collate_sparse(spans, sparse_keys, size),
        sequences=_collate_sequences(spans, list(sequence_keys), size) if sequence_keys else None,
        labels_BT=labels_BT,
        weights_B=weights_B,
        rows_B=rows_B,
        groups_BG=_concatenate([rows.groups_WG[a:b] for rows, a, b in spans]),
        cursor=cursor,
    )


def _collate_dense(spans: Sequence[RowSpan], size: int) -> Tensor:
    """Transpose dense values to rows, a batch at a time, since a batch fits into the cache.

    Torch aligns them to 64 bytes, NumPy to 16, on which the rounding of some products depends.
    """
    if (received := _received_whole(spans)) is not None:
        return torch.from_numpy(received.dense_DW.T)
    dense_BD = torch.empty(size, len(spans[0][0].dense_DW), dtype=torch.float32)
    array_BD, at = dense_BD.numpy(), 0
    for rows, a, b in spans:
        array_BD[at : at + b - a] = rows.dense_DW[:, a:b].T
        at += b - a
    return dense_BD


def _received_whole(spans: Sequence[RowSpan]) -> Rows | None:
    """Return the rows of a batch that arrived collated; None if it must be assembled."""
    rows, a, b = spans[0]
    is_whole = len(spans) == 1 and (a, b) == (0, len(rows)) and rows.ids_V is not None
    return rows if is_whole else None


def _concatenate(slices: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(slices[0] if len(slices) == 1 else np.concatenate(slices))


def _collate_weights(spans: Sequence[RowSpan], size: int) -> Tensor:
    slices = [rows.weights_W[a:b] for rows, a, b in spans if rows.weights_W is not None]
    return _concatenate(slices or [np.ones(size, np.float32)])


def _collate_sparse(spans: Sequence[RowSpan], keys: list[str], size: int) -> KeyedJaggedTensor:
    """Return the ids feature-major: all of feature 0, then of feature 1, and lists at the end.

    Offsets are given, as int64 like the values: otherwise each look-up would compute and convert
    them again. With lists, lengths are computed when needed, such as for mean pooling.
    Everything is NumPy: a torch operation of this size would start OpenMP threads, which
    on busy cores cost more than everything else here.
    """
    num_singles = len(spans[0][0].ids_FW)
    num_ids = num_singles * size
    lists = _concatenate_lists([rows.lists for rows, _, _ in spans], spans)
    received = _received_whole(spans)
    if received is not None and received.ids_V is not None:
        values = received.ids_V
    else:
        values = np.empty(num_ids + lists.total, np.int64)
        ids_FB = values[:num_ids].reshape(num_singles, size)
        at = 0
        for rows, a, b in spans:
            ids_FB[:, at : at + b - a] = rows.ids_FW[:, a:b]
            at += b - a
        if lists.values:
            np.concatenate(lists.values, out=values[num_ids:])
    lengths: np.ndarray | None
    lengths, offsets = _single_id_layout(num_singles, size)
    if lists.values:
        offsets = np.concatenate([offsets, *lists.ends])
        offsets[num_ids + 1 :] += num_ids
        lengths = None
    weights = None
    if lists.weights:  # a single id has weight 1
        weights = np.concatenate([np.ones(num_ids, np.float32), *lists.weights])
    return _build_kjt(keys, values, lengths, offsets, weights, size)


def _collate_sequences(spans: Sequence[RowSpan], keys: list[str], size: int) -> KeyedJaggedTensor:
    lists = _concatenate_lists([rows.sequences for rows, _, _ in spans], spans)
    offsets = np.concatenate([np.zeros(1, np.int64), *lists.ends])
    received = _received_whole(spans)
    if received is not None and received.sequences_V is not None:
        values = received.sequences_V
    else:
        values = np.concatenate(lists.values, dtype=np.int64)
    return _build_kjt(keys, values, np.diff(offsets), offsets, None, size)


def _build_kjt(
    keys: list[str],
    values: np.ndarray,
    lengths: np.ndarray | None,
    offsets: np.ndarray,
    weights: np.ndarray | None,
    size: int,
) -> KeyedJaggedTensor:
    offset_per_key = offsets[::size].tolist()
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.from_numpy(values),
        weights=None if weights is None else torch.from_numpy(weights),
        lengths=None if lengths is None else torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets),
        stride=size,
        length_per_key=[b - a for a, b in pairwise(offset_per_key)],
        offset_per_key=offset_per_key,
    )


@dataclass(frozen=True)
class _ListColumns:
    """List columns of a batch in order, as arrays to be concatenated."""

    values: list[np.ndarray]
    ends: list[np.ndarray]  # end of each list, counted over all columns
    weights: list[np.ndarray]  # empty if no column has weights
    total: int  # number of values


def _concatenate_lists(
    windows: Sequence[Sequence[JaggedColumn]], spans: Sequence[RowSpan]
) -> _ListColumns:
    """Concatenate list columns; `windows` has for each span the columns of its window."""
    values, ends, weights, total = [], [], [], 0
    weighted = any(lists.weights_V is not None for columns in windows for lists in columns)
    for column in zip(*windows):
        for lists, (_, a, b) in zip(column, spans):
            offsets = lists.offsets_W1[a : b + 1]
            values.append(lists.values_V[offsets[0] : offsets[-1]])
            ends.append(offsets[1:] + (total - offsets[0]))
            total += len(values[-1])
            if weighted and lists.weights_V is None:
                weights.append(np.ones(len(values[-1]), np.float32))
            elif lists.weights_V is not None:
                weights.append(lists.weights_V[offsets[0] : offsets[-1]])
    return _ListColumns(values, ends, weights, total)


@lru_cache(maxsize=8)
def _single_id_layout(num_features: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths and offsets for one id per row.

    Batches share these arrays; never write to them.
    """
    count = num_features * size
    return np.ones(count, np.int64), np.arange(count + 1)
