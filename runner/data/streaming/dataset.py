"""A stream of rows as a dataset: batches that carry their position in the stream."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.batch import Batch, DataPosition
from runner.data.core.columns import Columns
from runner.data.core.dataset import START_POSITION, EndOfStream
from runner.data.core.fitted import FittedTransforms, copy_fitted_transforms
from runner.data.growing.settings import Growth
from runner.data.read.collate import build_schema, collate
from runner.data.read.decode import Rows
from runner.data.read.stream import BatchSlice, RowSpan
from runner.errors import DataError
from runner.parts import internal

StreamPosition = Mapping[str, Any]  # JSON; its keys are those of the source


@dataclass(frozen=True)
class StreamChunk:
    """Consecutive rows of a stream."""

    rows: Rows
    position_after: Callable[[int], StreamPosition]  # the stream's position after the first n rows


class StreamSource(Protocol):
    """Provides rows in an order that can be repeated from any position."""

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """Yield the rows from a position on, and wait for more at the end.

        Args:
            position: of a checkpoint; None: the beginning of the stream.
            first_row: number of rows of the stream before that position.
            should_stop: called during a wait; true ends the run.

        Raises:
            EndOfStream: after a wait that was too long or was stopped.
        """
        ...


@internal
class StreamDataset:
    """Implements `runner.data.core.dataset.Dataset` with one split, `train`, of unknown length.

    Only full batches are delivered. The remaining rows are left for the run that continues from
    here, which therefore makes the same updates as a run without interruption.
    """

    is_stream = True
    rest = "short"

    def __init__(self, source: StreamSource, columns: Columns, fitted: FittedTransforms) -> None:
        self.schema = build_schema(columns)
        self.growth: Mapping[str, Growth] = columns.growth
        self.num_rows: Mapping[str, int] = {}
        self.reachable: Mapping[str, Mapping[str, float]] = {}
        self.bad_rows: Mapping[str, Any] = {"count": 0, "examples": []}
        self.should_stop: Callable[[], bool] = lambda: False
        self._source = source
        self._fitted = fitted
        self._keys = [feature.name for feature in self.schema.sparse]
        self._sequence_keys = [feature.name for feature in self.schema.sequences]

    def save_fitted_transforms(self, folder: Path) -> None:
        """Save the transforms with which the rows are encoded."""
        with tempfile.TemporaryDirectory() as temporary:
            self._fitted.save(Path(temporary))
            copy_fitted_transforms(Path(temporary), folder)

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
        """Yield batches in the stream's order, whatever the seed.

        Every rank reads the whole stream, so that ranks need not share a reader, and takes its part
        of each global batch. They must agree on the end, see `runner.training.steps`.

        Raises:
            DataError: if the split is not `train`, or a row cannot be read.
            EndOfStream: where the stream ends.
        """
        if split != "train":
            raise DataError(
                f"a stream has no {split!r} split; loop=online scores each row before it trains on "
                "it"
            )
        global_batch_size = batch_size * world_size
        waiting: list[RowSpan] = []
        num_waiting, end_offset = 0, start.offset
        for chunk in self._source.read_chunks(
            start.place, start.offset, lambda: self.should_stop()
        ):
            at, rows = 0, chunk.rows
            while num_waiting + len(rows) - at >= global_batch_size:
                stop = at + global_batch_size - num_waiting
                end_offset += global_batch_size
                spans = take_part((*waiting, (rows, at, stop)), rank * batch_size, batch_size)
                batch_slice = BatchSlice(spans, end_offset)
                cursor = DataPosition(0, end_offset, chunk.position_after(stop))
                yield collate(batch_slice, self._keys, cursor, self._sequence_keys)
                waiting, num_waiting, at = [], 0, stop
            if at < len(rows):
                waiting.append((rows, at, len(rows)))
                num_waiting += len(rows) - at
        raise EndOfStream("the stream has ended")


def take_part(spans: Sequence[RowSpan], first: int, count: int) -> tuple[RowSpan, ...]:
    """Return the spans of `count` rows, beginning at row `first` of the given spans."""
    part: list[RowSpan] = []
    at = 0
    for rows, a, b in spans:
        begin, end = max(first - at, 0), min(first + count - at, b - a)
        if begin < end:
            part.append((rows, a + begin, a + end))
        at += b - a
    return tuple(part)
