"""Pieces of windows -> `Batch`: the only module of the data layer that makes tensors.

Copies after decoding: ids once (into the feature-major vector that the tables take), lists once,
dense, labels and row numbers none (views of the window) unless a batch spans two windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Cursor, Schema, SparseFeature, TaskSpec
from runner.data.columns import Columns
from runner.data.stream import Part, Piece


def schema_of(columns: Columns) -> Schema:
    """What the declared columns promise a model."""
    return Schema(
        dense=tuple(c.name for c in columns.numeric),
        sparse=tuple(
            SparseFeature(
                c.name,
                c.num_rows,
                table=c.table,
                mean_length=c.mean_length,
                pooling=c.pooling,
            )
            for c in (*columns.singles, *columns.lists)
        ),
        tasks=tuple(TaskSpec(label.name, label.kind) for label in columns.labels),
        groups=columns.groups,
    )


def assemble(piece: Piece, keys: list[str], cursor: Cursor) -> Batch:
    """One batch. `keys`: names of the sparse features, single ids before lists."""
    parts = piece.parts
    labels_BT = _rows([rows.labels_WT[a:b] for rows, a, b in parts])
    rows_B = _rows([rows.rows_W[a:b] for rows, a, b in parts])
    weights_B = _weights(parts, labels_BT.shape[0])
    if piece.padding:
        weights_B, rows_B = torch.zeros(1), torch.full((1,), -1)
    return Batch(
        dense_BD=_rows([rows.dense_WD[a:b] for rows, a, b in parts]),
        sparse=_sparse(parts, keys, labels_BT.shape[0]),
        sequences=None,
        labels_BT=labels_BT,
        weights_B=weights_B,
        rows_B=rows_B,
        groups_BG=_rows([rows.groups_WG[a:b] for rows, a, b in parts]),
        cursor=cursor,
    )


def _rows(slices: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(slices[0] if len(slices) == 1 else np.concatenate(slices))


def _weights(parts: Sequence[Part], size: int) -> Tensor:
    known = [rows.weights_W[a:b] for rows, a, b in parts if rows.weights_W is not None]
    return _rows(known or [np.ones(size, np.float32)])


def _sparse(parts: Sequence[Part], keys: list[str], size: int) -> KeyedJaggedTensor:
    """Values feature-major: all ids of feature 0, then of feature 1, lists at the end.

    Lengths and offsets are both given, as int64, the type of the values: else each look-up would
    compute and convert them again. NumPy throughout: a torch operation on this much would start
    OpenMP threads, which on busy cores cost more than all else here.
    """
    num_singles, num_lists = len(parts[0][0].ids_FW), len(parts[0][0].lists)
    num_ids = num_singles * size
    lists: list[np.ndarray] = []
    ends: list[np.ndarray] = []  # of the batch's lists, counted in its list values
    total = 0
    for n in range(num_lists):
        for rows, a, b in parts:
            own = rows.lists[n].offsets_W1[a : b + 1]
            lists.append(rows.lists[n].values_V[own[0] : own[-1]])
            ends.append(own[1:] + (total - own[0]))
            total += len(lists[-1])
    values = np.empty(num_ids + total, np.int64)
    ids_FB = values[:num_ids].reshape(num_singles, size)
    at = 0
    for rows, a, b in parts:
        ids_FB[:, at : at + b - a] = rows.ids_FW[:, a:b]
        at += b - a
    lengths, offsets = _single_layout(num_singles, size)
    if num_lists:
        np.concatenate(lists, out=values[num_ids:])
        offsets = np.concatenate([offsets, *ends])
        offsets[num_ids + 1 :] += num_ids
        lengths = np.diff(offsets)
    offset_per_key = offsets[::size].tolist()
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.from_numpy(values),
        lengths=torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets),
        stride=size,
        length_per_key=[b - a for a, b in pairwise(offset_per_key)],
        offset_per_key=offset_per_key,
    )


@lru_cache(maxsize=8)
def _single_layout(num_features: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and offsets of one id a row, shared by all batches of a size. Never write to them."""
    count = num_features * size
    return np.ones(count, np.int64), np.arange(count + 1)
