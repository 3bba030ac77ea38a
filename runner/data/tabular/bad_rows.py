"""Rows that cannot be used: an error at the first, or left out at weight 0, counted and bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from runner.data.tabular.read_files import RowChunk
from runner.errors import DataError

NUM_EXAMPLES = 10


@dataclass
class BadRows:
    """What was found so far in all files."""

    max_rows: int = 0  # 0: the first is an error
    count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def skips(self) -> bool:
        return self.max_rows > 0

    def record(self, bad_R: np.ndarray, messages: list[str]) -> None:
        """Counts the bad rows of a piece. Raises: DataError beyond the limit."""
        self.count += int(bad_R.sum())
        self.examples += messages[: NUM_EXAMPLES - len(self.examples)]
        if self.count > self.max_rows:
            last = messages[-1] if messages else "unreadable"
            raise DataError(f"more than dataset.max_bad_rows={self.max_rows} bad rows; {last}")


def _no_number(texts: pa.Array, row: int) -> str:
    return f"{texts[row].as_py()!r} is no number"


@dataclass
class RowValidator:
    """Collects what is wrong with the rows of one piece."""

    chunk: RowChunk
    skip_bad_rows: bool
    bad_R: np.ndarray
    messages: list[str] = field(default_factory=list)

    @classmethod
    def for_chunk(cls, piece: RowChunk, skips: bool) -> RowValidator:
        judge = cls(piece, skips, np.zeros(piece.num_rows, bool))
        for column, texts in piece.invalid_values.items():
            wrong_R = texts.is_valid().to_numpy(zero_copy_only=False)
            judge.reject(column, wrong_R, partial(_no_number, texts))
        return judge

    def reject(
        self,
        column: str,
        wrong: np.ndarray,
        problem: Callable[[int], str],
        row_of: np.ndarray | None = None,
    ) -> None:
        """`wrong`: a flag a row, or a value of a list column, whose rows are `row_of`.

        Raises: DataError for the first one, unless bad rows are skipped.
        """
        places = np.flatnonzero(wrong)
        if not len(places):
            return
        rows = places if row_of is None else row_of[places]
        for row in np.unique(rows[~self.bad_R[rows]])[:NUM_EXAMPLES]:
            place = int(places[np.flatnonzero(rows == row)[0]])
            message = f"{self.chunk.describe_row(int(row))}, column {column!r}: {problem(place)}"
            if not self.skip_bad_rows:
                raise DataError(message)
            self.messages.append(message)
        self.bad_R[rows] = True
