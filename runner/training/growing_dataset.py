"""A dataset whose raw ids have become rows, by the maps of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from runner.batch import Batch
from runner.data.core.dataset import Dataset, DatasetWrapper
from runner.data.core.dataset_check import is_stream
from runner.parts import internal
from runner.training.batches import agree_on_end
from runner.training.update.context import Context
from runner.training.update.growing_ids import GrowingIds


def with_rows(dataset: Dataset, context: Context) -> Dataset:
    """Return the dataset of a job, with rows in place of raw ids where tables grow."""
    if context.growing is None:
        return dataset
    return GrowingDataset(dataset, context.growing, context)


@internal
class GrowingDataset(DatasetWrapper):
    """Gives out the batches of another dataset with the rows that ids have when each is taken."""

    def __init__(self, dataset: Dataset, ids: GrowingIds, context: Context) -> None:
        super().__init__(dataset)
        self.is_stream = is_stream(dataset)
        self._ids, self._ranks = ids, context.ranks

    @property
    def should_stop(self) -> Callable[[], bool]:
        """What a stream asks during a wait."""
        asked: Callable[[], bool] = self.dataset.should_stop  # type: ignore[attr-defined]
        return asked

    @should_stop.setter
    def should_stop(self, asked: Callable[[], bool]) -> None:
        self.dataset.should_stop = asked  # type: ignore[attr-defined]

    def batches(self, split: str, *, grow: bool = False, **options: Any) -> Iterator[Batch]:
        """Return an iterator as `Dataset.batches` does.

        Args:
            split: as there.
            grow: whether each batch is the next update of the training: its ids count then, and
                taking it is collective.
            options: as there.
        """
        batches = self.dataset.batches(split, **options)
        if not grow:
            return (self._ids.look_up(batch) for batch in batches)
        if self.is_stream and self._ranks.is_distributed:
            batches = agree_on_end(batches, self._ranks)
        return (self._ids.grow(batch) for batch in batches)
