"""What a dataset is to the rest of the runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.batch import Batch, DataPosition, Schema

START_POSITION = DataPosition()


class Dataset(Protocol):
    schema: Schema
    num_rows: Mapping[str, int]  # per split, in the order train, validation, test; absent: no split
    reachable: Mapping[str, Mapping[str, float]]  # split -> metric -> best possible; {} if unknown

    rest: str  # of a training epoch's rows that fill no batch: short, drop or pad

    bad_rows: Mapping[str, Any]  # count and examples of rows skipped when it was prepared

    def save_fitted_transforms(self, folder: Path) -> None:
        """Keeps what the transforms learnt from the train split, if they learnt anything."""
        ...

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
        """The rest of one epoch, from `start` to its end, in the exact order.

        batch_size counts rows a rank; global batch k holds the examples k * batch_size * world_size
        onwards of the epoch's sequence, and rank r its r-th part. seed=None: file order, of all
        rows, the last batch shorter. With a seed, `rest` says what becomes of that batch. Every
        call returns a fresh iterator.
        """
        ...


def epoch_end_offset(dataset: Dataset, offset: int, global_batch: int) -> int:
    """Where the updates of a training epoch end that go on from `offset`: before its last rows, if
    those are dropped."""
    total = dataset.num_rows["train"]
    if dataset.rest != "drop":
        return total
    return total - (total - offset) % global_batch


class FileOrderDataset:
    """Everything else is the dataset's own."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.schema: Schema = dataset.schema
        self.num_rows: Mapping[str, int] = dataset.num_rows
        self.reachable: Mapping[str, Mapping[str, float]] = dataset.reachable
        self.bad_rows: Mapping[str, Any] = dataset.bad_rows
        self.rest = dataset.rest
        self.save_fitted_transforms = dataset.save_fitted_transforms

    def batches(self, split: str, *, seed: int | None = None, **how: Any) -> Iterator[Batch]:
        return self.dataset.batches(split, seed=None, **how)


class EndOfStream(Exception):  # noqa: N818  (no error: what its iterator says instead of waiting)
    """A stream gives out no more batches for now; a run may go on from its position later."""
