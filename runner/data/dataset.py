"""What a dataset is to the rest of the runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.batch import Batch, Cursor, Schema

START = Cursor()


class Dataset(Protocol):
    schema: Schema
    num_rows: Mapping[str, int]  # per split, in the order train, validation, test; absent: no split
    reachable: Mapping[str, Mapping[str, float]]  # split -> metric -> best possible; {} if unknown

    rest: str  # of a training epoch's rows that fill no batch: short, drop or pad

    bad_rows: Mapping[str, Any]  # count and examples of rows skipped when it was prepared

    def save_learnt(self, folder: Path) -> None:
        """Keeps what the transforms learnt from the train split, if they learnt anything."""
        ...

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int | None = None,
        start: Cursor = START,
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


def end_of_epoch(dataset: Dataset, offset: int, global_batch: int) -> int:
    """Where the updates of a training epoch end that go on from `offset`: before its last rows, if
    those are dropped."""
    total = dataset.num_rows["train"]
    if dataset.rest != "drop":
        return total
    return total - (total - offset) % global_batch
