"""A stream as a dataset: whatever brings rows in order, cut into batches that know their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.batch import Batch, DataPosition
from runner.data.core.columns import Columns
from runner.data.core.dataset import START_POSITION, EndOfStream
from runner.data.read.collate import build_schema, collate
from runner.data.read.decode import Rows
from runner.data.read.stream import BatchSlice, RowSpan
from runner.errors import DataError

StreamPosition = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class StreamChunk:
    """Consecutive rows of a stream."""

    rows: Rows
    position_after: Callable[[int], StreamPosition]  # of the stream after the first n of them


class StreamSource(Protocol):
    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """Rows from a place on; it waits for more, until it raises EndOfStream.

        Args: position: of a checkpoint; None: the beginning. first_row: rows of the stream before it.
        should_stop: asked while it waits, for a signal that ends the run.
        """
        ...


class StreamDataset:
    """Implements `runner.data.core.dataset.Dataset` with one split, `train`, of unknown length.

    Only whole batches are given out: rows that do not fill one are left for the run that goes on
    from here, which therefore makes the updates of one that never stopped.
    """

    is_stream = True
    rest = "short"

    def __init__(self, source: StreamSource, columns: Columns) -> None:
        self.schema = build_schema(columns)
        self.num_rows: Mapping[str, int] = {}
        self.reachable: Mapping[str, Mapping[str, float]] = {}
        self.bad_rows: Mapping[str, Any] = {"count": 0, "examples": []}
        self.should_stop: Callable[[], bool] = lambda: False
        self._source = source
        self._keys = [feature.name for feature in self.schema.sparse]
        self._sequence_keys = [feature.name for feature in self.schema.sequences]

    def save_fitted_transforms(self, folder: Path) -> None:
        """Nothing: a stream's transforms learn nothing from it."""

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
        """In the stream's order, whatever the seed. Raises: EndOfStream where it ends."""
        if split != "train":
            raise DataError(f"a stream has no {split!r} split; it is scored as it is learnt from")
        assert world_size == 1, "checked by the rules"
        waiting: list[RowSpan] = []
        num_waiting, done = 0, start.offset
        for chunk in self._source.read_chunks(
            start.place, start.offset, lambda: self.should_stop()
        ):
            at, rows = 0, chunk.rows
            while num_waiting + len(rows) - at >= batch_size:
                stop = at + batch_size - num_waiting
                done += batch_size
                piece = BatchSlice((*waiting, (rows, at, stop)), done)
                cursor = DataPosition(0, done, chunk.position_after(stop))
                yield collate(piece, self._keys, cursor, self._sequence_keys)
                waiting, num_waiting, at = [], 0, stop
            if at < len(rows):
                waiting.append((rows, at, len(rows)))
                num_waiting += len(rows) - at
        raise EndOfStream("the stream has ended")
