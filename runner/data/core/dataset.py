"""The interface of a dataset, and a base class for datasets that wrap another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from runner.batch import Batch, DataPosition, Schema
from runner.data.growing.settings import Growth
from runner.parts import internal

START_POSITION = DataPosition()


class SeenItems(Protocol):
    """The items that the users of a split's rows have interacted with."""

    def find(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return indices into `rows_B`, [V], and the id of an item that this user has seen, [V].

        Args:
            rows_B: numbers of rows in the split, as in `Batch.rows_B`.
        """
        ...


class Dataset(Protocol):
    """Rows in splits, delivered as batches in an exact order.

    A subclass sets `schema` and `num_rows`, defines `batches`, and inherits the rest.
    """

    schema: Schema
    num_rows: Mapping[str, int]  # by split, in the order train, validation, test
    # split -> metric -> best possible; {} if unknown
    reachable: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    rest: str = "short"  # for rows of an epoch that fill no batch: short, drop or pad
    # count and examples of the rows that preparation skipped
    bad_rows: Mapping[str, Any] = MappingProxyType({"count": 0, "examples": ()})

    # table -> how its rows are allocated and freed, if batches have raw ids instead of rows
    growth: Mapping[str, Growth] = MappingProxyType({})

    def save_fitted_transforms(self, folder: Path) -> None:
        """Save the values fitted to the train split, if there are any, into a run's folder."""
        return

    def read_ahead(self) -> None:
        """Allow reading and decoding in parallel with training, since a core is free."""
        return

    def read_in_process(self, threads: int) -> None:
        """Allow another process, with so many threads, to make the batches for a GPU."""
        self.read_ahead()

    def seen_items(self, split: str) -> SeenItems | None:
        """Return the items that the users of a split's rows have seen; None if unknown."""
        return None

    def name_values(self, column: str, values: Sequence[int]) -> Mapping[int, str]:
        """Return names for values of a column of ids or groups, as for metrics of slices.

        Args:
            column: of the schema.
            values: as in batches.

        Returns:
            Their names, in display order; a value without a name is shown as its number.
        """
        return {}

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int | None = None,
        start: DataPosition = START_POSITION,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """Return a new iterator over one epoch's batches, from `start` to the end of the epoch.

        Global batch k holds the batch_size * world_size examples of the epoch's sequence that begin
        at k * batch_size * world_size, and rank r gets the r-th part of it.

        Args:
            split: a key of `num_rows`.
            batch_size: rows of a batch on one rank.
            seed: of the shuffle; `rest` then decides about an incomplete last batch. None:
                all rows in the order of the files, with a shorter last batch.
            start: position of the first example.
            rank: of the caller.
            world_size: number of ranks that share each global batch.
        """
        ...


def epoch_end_offset(dataset: Dataset, offset: int, global_batch: int) -> int:
    """Return the offset at which a training epoch that continues from `offset` ends.

    It is before the last rows if the dataset drops those that do not fill a global batch.
    """
    total = dataset.num_rows["train"]
    if dataset.rest != "drop":
        return total
    return total - (total - offset) % global_batch


class DatasetWrapper:
    """Base of a dataset that makes its own batches and delegates the rest to another dataset.

    A subclass defines `batches`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.schema: Schema = dataset.schema
        self.num_rows: Mapping[str, int] = dataset.num_rows
        self.reachable: Mapping[str, Mapping[str, float]] = dataset.reachable
        self.bad_rows: Mapping[str, Any] = dataset.bad_rows
        self.rest = dataset.rest
        self.growth: Mapping[str, Growth] = getattr(dataset, "growth", {})
        self.save_fitted_transforms = dataset.save_fitted_transforms
        self.read_ahead = getattr(dataset, "read_ahead", lambda: None)
        self.read_in_process = getattr(
            dataset, "read_in_process", lambda threads: self.read_ahead()
        )
        self.seen_items = getattr(dataset, "seen_items", lambda split: None)
        self.name_values: Callable[[str, Sequence[int]], Mapping[int, str]] = getattr(
            dataset, "name_values", lambda column, values: {}
        )


def unwrapped(dataset: Dataset | DatasetWrapper) -> Dataset:
    """Return the dataset inside all wrappers; without wrappers, the dataset itself."""
    while isinstance(dataset, DatasetWrapper):
        dataset = dataset.dataset
    return dataset


@internal
class FileOrderDataset(DatasetWrapper):
    """A dataset that delivers the rows of another in the order of the files, whatever the seed."""

    def batches(self, split: str, *, seed: int | None = None, **options: Any) -> Iterator[Batch]:
        return self.dataset.batches(split, seed=None, **options)


class EndOfStream(Exception):  # noqa: N818  (it signals an end, not an error)
    """A stream has no more batches for now; a run may continue from its position later."""
