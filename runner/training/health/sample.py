"""Rows of a split as plain arrays, drawn in an order that depends on the data alone.

N rows, V ids of all of them, D dense features, T tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runner.batch import Batch, Schema, columns_by_label
from runner.data.core.dataset import Dataset

BATCH_ROWS = 8192
# The least number of rows with the rarer value of a binary label; to reach it more rows are read,
# up to so many times the sample's size.
ENOUGH_RARE, MOST_TIMES = 2_000, 20
JUDGED_SHARE = 0.2  # share of train rows to judge on without a validation split
MOST_CLASS_CELLS = 4_000_000  # rows times classes that a regression is fitted to in seconds
ORDER_SEED = 0  # not the run's seed, so that runs of other seeds have the same yardstick
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ids:
    """The ids of a feature: row number and id of each look-up, with its share in the row."""

    rows_V: Ints
    ids_V: Ints
    values_V: Floats

    def select(self, kept_N: NDArray[np.bool_], number_N: Ints) -> Ids:
        """Return the look-ups of the rows that are kept, with the new numbers of rows."""
        kept_V = kept_N[self.rows_V]
        return Ids(number_N[self.rows_V[kept_V]], self.ids_V[kept_V], self.values_V[kept_V])


@dataclass(frozen=True)
class Sample:
    """A sample of the rows of a split, without those of weight 0.

    If a label is rare, rows with its rarer value are oversampled, and the weights of the others
    are raised accordingly. The mean weight is at least 1, since the penalties of regressions are
    relative to rows: weights that add up to 1 would be drowned by them. A larger mean stays, as of
    rows that stand for several.
    """

    ids: Mapping[str, Ids]  # by feature; sequences are bags of their ids
    dense_ND: Floats
    labels_NT: Floats
    weights_N: Floats
    split_rows: int  # rows of the whole split that count; an estimate where it was not read whole

    @property
    def num_rows(self) -> int:
        """The number of rows in the sample."""
        return len(self.weights_N)

    def hold_out(self) -> tuple[Sample, Sample]:
        """Split the sample into rows to learn from, and a fifth of the rows to judge on."""
        is_judged_N = np.random.default_rng(ORDER_SEED).random(self.num_rows) < JUDGED_SHARE
        return self._select(~is_judged_N), self._select(is_judged_N)

    def _select(self, kept_N: NDArray[np.bool_]) -> Sample:
        number_N = np.cumsum(kept_N) - 1
        ids = {name: entry.select(kept_N, number_N) for name, entry in self.ids.items()}
        dense_ND, labels_NT = self.dense_ND[kept_N], self.labels_NT[kept_N]
        return Sample(ids, dense_ND, labels_NT, self.weights_N[kept_N], self.split_rows)


def most_train_rows(schema: Schema, limit: int) -> int:
    """Return the number of train rows for a regression: fewer for labels with many classes."""
    widest: int = max(c.stop - c.start for c in columns_by_label(schema.tasks).values())
    return min(limit, MOST_CLASS_CELLS // widest)


def read_sample(
    dataset: Dataset, split: str, limit: int, *, enough_rare: int = 0, most_times: int = MOST_TIMES
) -> Sample:
    """Read at most about `limit` rows of a split; a larger one is sampled in a shuffled order.

    Args:
        enough_rare: the least number of rows with the rarer value of each binary label; to reach
            it more rows are read, of which only those with such a value are kept.
        most_times: the most rows that are read, in multiples of `limit`.
    """
    total = dataset.num_rows[split]
    seed = ORDER_SEED if total > limit else None
    dense, labels, weights = [], [], []
    ids: dict[str, list[Ids]] = {f.name: [] for f in dataset.schema.id_features}
    count = num_seen = 0
    rare = _RareLabels(dataset.schema, limit, enough_rare, most_times)
    for batch in dataset.batches(split, batch_size=BATCH_ROWS, seed=seed):
        kept_B = (batch.weights_B > 0).numpy()
        num_seen += len(kept_B)
        kept_B = rare.keep(batch.labels_BT.numpy(), kept_B)
        number_B = np.cumsum(kept_B) - 1 + count
        for name, entry in batch_ids(batch, dataset.schema):
            ids[name].append(entry.select(kept_B, number_B))
        dense.append(batch.dense_BD.numpy()[kept_B])
        labels.append(batch.labels_BT.numpy()[kept_B])
        weights.append(batch.weights_B.numpy()[kept_B])
        count += int(kept_B.sum())
        if rare.has_enough:
            break
    labels_NT = _stack(labels, len(dataset.schema.tasks))
    weights_N = np.concatenate(weights).astype(np.float64) if weights else np.zeros(0)
    times_N = rare.scale(labels_NT)
    mean = float(np.average(weights_N, weights=times_N)) if count else 1.0
    return Sample(
        {name: _join(parts) for name, parts in ids.items()},
        _stack(dense, len(dataset.schema.dense)),
        labels_NT,
        weights_N / min(mean, 1.0) * times_N,
        round(total * rare.num_read / max(num_seen, 1)),
    )


class _RareLabels:
    """Decides which rows to keep: all at first, then only those with a rare label."""

    def __init__(self, schema: Schema, limit: int, enough: int, most_times: int) -> None:
        self._binary = [t for t, task in enumerate(schema.tasks) if task.kind == "binary"]
        self._limit, self._enough, self._most = limit, enough, limit * most_times
        self._ones_T = np.zeros(len(self._binary))
        self._rare_T: Floats | None = None  # the rarer value of each label, once it is known
        self.num_read = self._first_read = 0

    def keep(self, labels_BT: NDArray[np.float32], counted_B: NDArray[np.bool_]) -> Any:
        """Return which rows of a batch are kept: bool [B]."""
        self.num_read += int(counted_B.sum())
        kept_B = counted_B if self._rare_T is None else counted_B & self._is_rare(labels_BT)
        self._ones_T += labels_BT[:, self._binary][counted_B].sum(0)
        if self._rare_T is None and self.num_read >= self._limit:
            self._rare_T = (self._ones_T <= self.num_read / 2).astype(np.float64)
            self._first_read = self.num_read
        return kept_B

    @property
    def has_enough(self) -> bool:
        if self._rare_T is None:
            return False
        num_rare_T = np.where(self._rare_T == 1, self._ones_T, self.num_read - self._ones_T)
        return bool((num_rare_T >= self._enough).all()) or self.num_read >= self._most

    def scale(self, labels_NT: Floats) -> Floats:
        """Return factors of weights, [N], that make up for dropped rows without a rare label."""
        if self._rare_T is None or self.num_read == self._first_read:
            return np.ones(len(labels_NT))
        times = self.num_read / self._first_read
        return np.where(self._is_rare(labels_NT), 1.0, times)

    def _is_rare(self, labels_NT: Any) -> Any:
        return (labels_NT[:, self._binary] == self._rare_T).any(1)


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
            weights: torch.Tensor | None = feature.weights_or_none()
            values_V = np.ones(len(rows_V)) if weights is None else weights.double().numpy()
            if name in means and len(rows_V):
                values_V = values_V / lengths_B[rows_V]
            yield name, Ids(rows_V, feature.values().numpy().astype(np.int64), values_V)
