"""A dataset whose training rows come in the order of its files, whatever the seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.batch import Batch, Schema
from runner.data.dataset import Dataset


class InFileOrder:
    """Everything else is the dataset's own."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.schema: Schema = dataset.schema
        self.num_rows: Mapping[str, int] = dataset.num_rows
        self.reachable: Mapping[str, Mapping[str, float]] = dataset.reachable
        self.bad_rows: Mapping[str, Any] = dataset.bad_rows
        self.rest = dataset.rest
        self.save_learnt = dataset.save_learnt

    def batches(self, split: str, *, seed: int | None = None, **how: Any) -> Iterator[Batch]:
        return self.dataset.batches(split, seed=None, **how)
