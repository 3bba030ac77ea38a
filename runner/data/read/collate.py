"""Pieces of windows -> `Batch`: the only module of the data layer that makes tensors.

Copies after decoding: ids once (into the feature-major vector that the tables take), dense once
(turned to rows), lists once; labels and row numbers none (views of the window) unless a batch spans
two windows.
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
from runner.data.read.decode import JaggedColumn
from runner.data.read.stream import BatchSlice, RowSpan


def build_schema(columns: Columns) -> Schema:
    """What the declared columns promise a model."""
    return Schema(
        dense=tuple(c.name for c in columns.numeric),
        sparse=tuple(
            SparseFeature(
                c.name,
                c.num_rows,
                table=c.table,
                weighted=c.weights is not None,
                mean_length=c.mean_length,
                pooling=c.pooling,
            )
            for c in (*columns.singles, *columns.lists)
        ),
        tasks=tuple(TaskSpec(label.name, label.kind) for label in columns.labels),
        sequences=tuple(
            SequenceFeature(c.name, c.num_rows, c.max_length, c.table) for c in columns.sequences
        ),
        groups=tuple(name.removeprefix(GROUP_PREFIX) for name in columns.groups),
    )


def collate(
    batch_slice: BatchSlice,
    sparse_keys: list[str],
    cursor: DataPosition,
    sequence_keys: Sequence[str] = (),
) -> Batch:
    """One batch. `sparse_keys`: names of the sparse features, single ids before lists."""
    parts = batch_slice.spans
    labels_BT = _rows([rows.labels_WT[a:b] for rows, a, b in parts])
    rows_B = _rows([rows.rows_W[a:b] for rows, a, b in parts])
    weights_B = _weights(parts, labels_BT.shape[0])
    if batch_slice.is_padding:
        weights_B, rows_B = torch.zeros(1), torch.full((1,), -1)
    return Batch(
        dense_BD=_dense(parts, labels_BT.shape[0]),
        sparse=_sparse(parts, sparse_keys, labels_BT.shape[0]),
        sequences=_sequences(parts, list(sequence_keys)) if sequence_keys else None,
        labels_BT=labels_BT,
        weights_B=weights_B,
        rows_B=rows_B,
        groups_BG=_rows([rows.groups_WG[a:b] for rows, a, b in parts]),
        cursor=cursor,
    )


def _dense(parts: Sequence[RowSpan], size: int) -> Tensor:
    """Turned to rows here: of a batch, small enough for the cache, and not of a window."""
    dense_BD = np.empty((size, len(parts[0][0].dense_DW)), np.float32)
    at = 0
    for rows, a, b in parts:
        dense_BD[at : at + b - a] = rows.dense_DW[:, a:b].T
        at += b - a
    return torch.from_numpy(dense_BD)


def _rows(slices: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(slices[0] if len(slices) == 1 else np.concatenate(slices))


def _weights(parts: Sequence[RowSpan], size: int) -> Tensor:
    known = [rows.weights_W[a:b] for rows, a, b in parts if rows.weights_W is not None]
    return _rows(known or [np.ones(size, np.float32)])


def _sparse(parts: Sequence[RowSpan], keys: list[str], size: int) -> KeyedJaggedTensor:
    """Values feature-major: all ids of feature 0, then of feature 1, lists at the end.

    Lengths and offsets are both given, as int64, the type of the values: else each look-up would
    compute and convert them again. NumPy throughout: a torch operation on this much would start
    OpenMP threads, which on busy cores cost more than all else here.
    """
    num_singles = len(parts[0][0].ids_FW)
    num_ids = num_singles * size
    lists = _joined([[rows.lists[n] for rows, _, _ in parts] for n in _lists_in(parts)], parts)
    values = np.empty(num_ids + lists.total, np.int64)
    ids_FB = values[:num_ids].reshape(num_singles, size)
    at = 0
    for rows, a, b in parts:
        ids_FB[:, at : at + b - a] = rows.ids_FW[:, a:b]
        at += b - a
    lengths, offsets = _single_layout(num_singles, size)
    if lists.values:
        np.concatenate(lists.values, out=values[num_ids:])
        offsets = np.concatenate([offsets, *lists.ends])
        offsets[num_ids + 1 :] += num_ids
        lengths = np.concatenate([lengths, np.diff(offsets[num_ids:])])
    weights = None
    if lists.weights:  # of single ids: 1
        weights = np.concatenate([np.ones(num_ids, np.float32), *lists.weights])
    return _keyed(keys, values, lengths, offsets, weights, size)


def _sequences(parts: Sequence[RowSpan], keys: list[str]) -> KeyedJaggedTensor:
    size = sum(b - a for _, a, b in parts)
    columns = range(len(keys))
    joined = _joined([[rows.sequences[n] for rows, _, _ in parts] for n in columns], parts)
    offsets = np.concatenate([np.zeros(1, np.int64), *joined.ends])
    values = np.concatenate(joined.values).astype(np.int64)
    return _keyed(keys, values, np.diff(offsets), offsets, None, size)


def _keyed(
    keys: list[str],
    values: np.ndarray,
    lengths: np.ndarray,
    offsets: np.ndarray,
    weights: np.ndarray | None,
    size: int,
) -> KeyedJaggedTensor:
    offset_per_key = offsets[::size].tolist()
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.from_numpy(values),
        weights=None if weights is None else torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets),
        stride=size,
        length_per_key=[b - a for a, b in pairwise(offset_per_key)],
        offset_per_key=offset_per_key,
    )


@dataclass(frozen=True)
class _Joined:
    """List columns of a batch, one after another."""

    values: list[np.ndarray]
    ends: list[np.ndarray]  # where each list ends, counted over all of them
    weights: list[np.ndarray]  # empty: no column is weighted
    total: int


def _joined(columns: Sequence[Sequence[JaggedColumn]], parts: Sequence[RowSpan]) -> _Joined:
    """columns: for every list column its lists in every part."""
    values, ends, weights, total = [], [], [], 0
    weighted = any(lists.weights_V is not None for column in columns for lists in column)
    for column in columns:
        for lists, (_, a, b) in zip(column, parts):
            own = lists.offsets_W1[a : b + 1]
            values.append(lists.values_V[own[0] : own[-1]])
            ends.append(own[1:] + (total - own[0]))
            total += len(values[-1])
            if weighted and lists.weights_V is None:
                weights.append(np.ones(len(values[-1]), np.float32))
            elif lists.weights_V is not None:
                weights.append(lists.weights_V[own[0] : own[-1]])
    return _Joined(values, ends, weights, total)


def _lists_in(parts: Sequence[RowSpan]) -> range:
    return range(len(parts[0][0].lists))


@lru_cache(maxsize=8)
def _single_layout(num_features: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and offsets of one id a row, shared by all batches of a size. Never write to them."""
    count = num_features * size
    return np.ones(count, np.int64), np.arange(count + 1)
