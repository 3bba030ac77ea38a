"""A dataset whose training split is one batch: a model that can learn at all learns it by heart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.batch import Batch, Cursor, Schema
from runner.data.dataset import Dataset


class OneBatch:
    """Every epoch of the training split is the batch that comes first from `start` on.

    So positions stay what they are: the cursor after it is the start of the next epoch. Other
    splits are the dataset's own.
    """

    def __init__(self, dataset: Dataset, start: Cursor) -> None:
        self.dataset, self.start = dataset, start
        self.schema: Schema = dataset.schema
        self.num_rows: Mapping[str, int] = dataset.num_rows
        self.reachable: Mapping[str, Mapping[str, float]] = dataset.reachable
        self.bad_rows: Mapping[str, Any] = dataset.bad_rows
        self.rest = dataset.rest
        self.save_learnt = dataset.save_learnt
        self.batch: Batch | None = None

    def batches(self, split: str, *, start: Cursor = Cursor(), **how: Any) -> Iterator[Batch]:  # noqa: B008
        if split != "train":
            yield from self.dataset.batches(split, start=start, **how)
            return
        if self.batch is None:
            self.batch = next(self.dataset.batches(split, start=self.start, **how))
        yield replace(self.batch, cursor=Cursor(start.epoch + 1, 0))
