"""Rows of a split as plain arrays, drawn in an order that depends on the data alone.

N rows, V ids of all of them, D dense features, T tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from runner.batch import Batch, Schema
from runner.data.core.dataset import Dataset

BATCH_ROWS = 8192
ORDER_SEED = 0  # not the run's: runs of other seeds have the same yardstick
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ids:
    """The ids of a feature: row number and id of each look-up, with its share in the row."""

    rows_V: Ints
    ids_V: Ints
    values_V: Floats


@dataclass(frozen=True)
class Sample:
    """Rows of a split. Those of weight 0, which count nowhere, are left out."""

    ids: Mapping[str, Ids]  # by feature; sequences are bags of their ids
    dense_ND: Floats
    labels_NT: Floats
    weights_N: Floats
    split_rows: int  # rows of the whole split

    @property
    def num_rows(self) -> int:
        """Number of the rows that were drawn."""
        return len(self.weights_N)


def read_sample(dataset: Dataset, split: str, limit: int) -> Sample:
    """Read at most about `limit` rows of a split; a larger one is sampled in a shuffled order."""
    total = dataset.num_rows[split]
    seed = ORDER_SEED if total > limit else None
    dense, labels, weights = [], [], []
    names = [f.name for f in dataset.schema.sparse]
    names += [s.name for s in dataset.schema.sequences]
    ids: dict[str, list[Ids]] = {name: [] for name in names}
    count = 0
    with closing(dataset.batches(split, batch_size=BATCH_ROWS, seed=seed)) as batches:  # type: ignore[type-var]
        for batch in batches:
            kept_B = (batch.weights_B > 0).numpy()
            number_B = np.cumsum(kept_B) - 1 + count
            for name, found in batch_ids(batch, dataset.schema):
                kept_V = kept_B[found.rows_V]
                ids[name].append(
                    Ids(number_B[found.rows_V[kept_V]], found.ids_V[kept_V], found.values_V[kept_V])
                )
            dense.append(batch.dense_BD.numpy()[kept_B])
            labels.append(batch.labels_BT.numpy()[kept_B])
            weights.append(batch.weights_B.numpy()[kept_B])
            count += int(kept_B.sum())
            if count >= limit:
                break
    return Sample(
        {name: _join(parts) for name, parts in ids.items()},
        _stack(dense, len(dataset.schema.dense)),
        _stack(labels, len(dataset.schema.tasks)),
        np.concatenate(weights).astype(np.float64) if weights else np.zeros(0),
        total,
    )


def _stack(parts: list[NDArray[np.float32]], width: int) -> Floats:
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros((0, width))


def _join(parts: list[Ids]) -> Ids:
    if not parts:
        return Ids(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Ids(
        np.concatenate([p.rows_V for p in parts]),
        np.concatenate([p.ids_V for p in parts]),
        np.concatenate([p.values_V for p in parts]),
    )


def batch_ids(batch: Batch, schema: Schema) -> Iterator[tuple[str, Ids]]:
    """Yield the ids of every feature and sequence of a batch."""
    means = {f.name for f in schema.sparse if f.pooling == "mean"}
    means |= {s.name for s in schema.sequences}
    for jagged in (batch.sparse, batch.sequences):
        if jagged is None:
            continue
        for name, feature in jagged.to_dict().items():
            lengths_B = feature.lengths().numpy().astype(np.int64)
            rows_V = np.repeat(np.arange(batch.size), lengths_B)
            given: torch.Tensor | None = feature.weights_or_none()
            values_V = np.ones(len(rows_V)) if given is None else given.double().numpy()
            if name in means and len(rows_V):
                values_V = values_V / lengths_B[rows_V]
            yield name, Ids(rows_V, feature.values().numpy().astype(np.int64), values_V)
