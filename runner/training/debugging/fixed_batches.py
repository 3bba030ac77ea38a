"""Datasets of a few batches that are held in memory, for trials.

B rows, N chosen rows, V values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, dense_rows
from runner.data.core.dataset import START_POSITION, Dataset, DatasetWrapper
from runner.parts import internal

POOL_ROWS = 4096


@internal
class FixedBatches(DatasetWrapper):
    """A dataset whose training split is one batch, then others in turn, without end."""

    def __init__(self, dataset: Dataset, first: Batch, others: Sequence[Batch]) -> None:
        super().__init__(dataset)
        self._batches = [first, *(others or [first])]

    def batches(
        self, split: str, *, start: DataPosition = START_POSITION, **kwargs: Any
    ) -> Iterator[Batch]:
        batches = self._batches if start.epoch == 0 else self._batches[1:]
        for batch in batches:
            yield replace(batch, cursor=DataPosition(start.epoch + 1, 0))


def longest_rows(batch: Batch) -> Batch:
    """Return the rows with the most ids, longest first, at most POOL_ROWS."""
    jagged = [j for j in (batch.sparse, batch.sequences) if j is not None]
    lengths_B = torch.stack([j.lengths().view(-1, batch.size).sum(0) for j in jagged]).sum(0)
    order = torch.argsort(lengths_B, descending=True, stable=True)
    return take_rows(batch, order[:POOL_ROWS])


def repeat_rows(pool: Batch, num_rows: int) -> Batch:
    """Return rows of the pool, from the first on and over again until there are enough."""
    return take_rows(pool, torch.arange(num_rows) % pool.size)


def take_rows(batch: Batch, rows_N: Tensor) -> Batch:
    """Return some rows of a batch, in this order."""
    sparse, sequences = (
        None if jagged is None else _take_jagged(jagged, rows_N, batch.size)
        for jagged in (batch.sparse, batch.sequences)
    )
    return replace(dense_rows(batch, rows_N), sparse=sparse, sequences=sequences)


def _take_jagged(jagged: KeyedJaggedTensor, rows_N: Tensor, size: int) -> KeyedJaggedTensor:
    lengths = jagged.lengths().view(-1, size)[:, rows_N].flatten()
    starts = jagged.offsets()[:-1].view(-1, size)[:, rows_N].flatten()
    ends = lengths.cumsum(0)
    shift = torch.repeat_interleave(starts - (ends - lengths), lengths)
    at_V = torch.arange(int(lengths.sum())) + shift
    weights = jagged.weights_or_none()
    return KeyedJaggedTensor(
        keys=jagged.keys(),
        values=jagged.values()[at_V],
        weights=None if weights is None else weights[at_V],
        lengths=lengths,
    )


@internal
class SingleBatchDataset(DatasetWrapper):
    """A dataset whose every training epoch is one batch, the first one from `start` on.

    Positions keep their meaning: the cursor after the batch is the start of the next epoch. Other
    splits are those of the wrapped dataset.
    """

    def __init__(self, dataset: Dataset, start: DataPosition) -> None:
        super().__init__(dataset)
        self.start = start
        self.batch: Batch | None = None

    def batches(
        self, split: str, *, start: DataPosition = START_POSITION, **kwargs: Any
    ) -> Iterator[Batch]:
        if split != "train":
            yield from self.dataset.batches(split, start=start, **kwargs)
            return
        if self.batch is None:
            self.batch = next(iter(self.dataset.batches(split, start=self.start, **kwargs)))
        yield replace(self.batch, cursor=DataPosition(start.epoch + 1, 0))
