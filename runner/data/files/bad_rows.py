"""Handles rows that cannot be used: the first is an error, or they get weight 0 and are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.data.files.read_files import RowChunk
from runner.errors import DataError, warn

MAX_EXAMPLES = 10  # rows that are described in messages
SKIP_HINT = "; dataset.on_bad_rows=skip leaves such rows out and counts them"


@dataclass
class BadRows:
    """The bad rows of all files so far. Its fields are written to JSON by their names."""

    max_rows: int = 0  # with 0, the first bad row is an error
    count: int = 0
    examples: list[str] = field(default_factory=list)
    # rows that are not bad, but whose value in the column of a split belongs to no split
    num_in_no_split: int = 0
    values_of_no_split: list[str] = field(default_factory=list)  # the first ones

    def add(self, count: int, messages: Sequence[str]) -> None:
        """Count bad rows, with the messages of the first ones and of the last.

        Raises:
            DataError: if there are now more of them than `max_rows`.
        """
        self.count += count
        self.examples += messages[: MAX_EXAMPLES - len(self.examples)]
        if self.count > self.max_rows:
            last = messages[-1] if messages else "unreadable"
            raise DataError(f"more than dataset.max_bad_rows={self.max_rows} bad rows; {last}")

    def add_rejected(self, bad_R: np.ndarray, messages: Sequence[str]) -> None:
        if bad_R.any():
            self.add(int(bad_R.sum()), messages)

    def add_unreadable(self, chunk: RowChunk) -> None:
        """Count the malformed lines of a chunk, and its rows if they could not be read."""
        for problem in chunk.line_problems:
            self.add(1, [problem])
        if chunk.table is None:
            self.add(chunk.num_rows, [chunk.problem])

    def add_in_no_split(self, count: int, values: Sequence[str]) -> None:
        """Count rows that are in no split, with the first of their values."""
        self.num_in_no_split += count
        known = dict.fromkeys([*self.values_of_no_split, *values])
        self.values_of_no_split = list(known)[:MAX_EXAMPLES]

    def json_fields(self, file_names: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields, with file names instead of paths.

        The folder may differ next time, or be confidential.

        Args:
            file_names: path -> name.
        """
        return {**vars(self), "examples": [_shorten_path(t, file_names) for t in self.examples]}


def report_bad_rows(bad: Mapping[str, Any] | None) -> None:
    """Report the skipped rows on stderr and in the log.

    Args:
        bad: the fields of a `BadRows`; None if no row can have been skipped.
    """
    if bad and bad.get("num_in_no_split"):
        values = ", ".join(map(repr, bad["values_of_no_split"]))
        warn(
            f"{bad['num_in_no_split']:,} rows are in no split and left out: the values that "
            f"`split` lists lack theirs ({values})"
        )
    if not bad or not bad["count"]:
        return
    shown = "".join(f"\n  {example}" for example in bad["examples"])
    more = bad["count"] - len(bad["examples"])
    more_text = f"\n  ... {more:,} more" if more > 0 else ""
    warn(f"{bad['count']:,} bad rows are skipped:{shown}{more_text}")


@dataclass
class RowValidator:
    """Collects the errors in the rows of one chunk.

    `hint` ends the error message about a bad row; `SKIP_HINT` if the dataset can skip bad rows.
    """

    chunk: RowChunk
    skip_bad_rows: bool
    bad_R: np.ndarray
    hint: str = ""
    messages: list[str] = field(default_factory=list)

    @classmethod
    def for_chunk(cls, chunk: RowChunk, skip_bad_rows: bool, hint: str = "") -> RowValidator:
        """Return a validator that has rejected the rows that were found bad while reading.

        These are rows with texts that are not of their column's type, and without a time by which
        they could be split.
        """
        validator = cls(chunk, skip_bad_rows, np.zeros(chunk.num_rows, bool), hint)
        for column, texts in chunk.invalid_values.items():
            wrong_R = texts.is_valid().to_numpy(zero_copy_only=False)
            problem = lambda row, own=texts: f"{own[row].as_py()!r} is not a number"
            validator.reject(column, wrong_R, problem)
        for column, (wrong_R, describe) in chunk.rejected.items():
            validator.reject(column, wrong_R, describe)
        return validator

    def reject(
        self,
        column: str,
        wrong: np.ndarray,
        problem: Callable[[int], str],
        row_of_value: np.ndarray | None = None,
    ) -> None:
        """Mark rows as bad, with a message for each of the first ones.

        Args:
            wrong: bool [R], or [V] for the values of a list column.
            problem: index into `wrong` -> what is wrong there.
            row_of_value: [V] the row of every value of a list column.

        Raises:
            DataError: for the first bad row, unless bad rows are skipped.
        """
        if not wrong.any():
            return
        indices = np.flatnonzero(wrong)
        rows = indices if row_of_value is None else row_of_value[indices]
        for row in np.unique(rows[~self.bad_R[rows]])[:MAX_EXAMPLES]:
            index = int(indices[np.flatnonzero(rows == row)[0]])
            message = f"{self.chunk.describe_row(int(row))}, column {column!r}: {problem(index)}"
            if not self.skip_bad_rows:
                raise DataError(message + self.hint)
            self.messages.append(message)
        self.bad_R[rows] = True


def _shorten_path(text: str, names: Mapping[str, str]) -> str:
    for path, name in names.items():
        if text.startswith(f"{path}: "):
            return name + text[len(path) :]
    return text
