"""Vocabularies of integer values, counted chunk by chunk and kept as sorted arrays.

Values that do not fit into memory are spilled as sorted runs with their counts, which are merged
range by range; the resulting vocabulary is exactly the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

UNKNOWN_ID = 0  # id of a value outside the vocabulary
MISSING_ID = 1
FIRST_VALUE_ID = 2  # id of the vocabulary's first value
MERGE_AT = 1 << 22  # largest number of values that wait to be merged; bounds memory
SORTED_FROM = 1 << 14  # values of a vocabulary that exceeds a core's cache
SEARCHED_AT_ONCE = 1 << 16  # values, in such a vocabulary


class ValueCounter:
    """Counts how often every value occurs."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_waiting = 0

    @property
    def num_held(self) -> int:
        """The number of values in memory, with their counts; waiting ones may occur repeatedly."""
        return len(self._values) + self._num_waiting

    def add(self, values: np.ndarray) -> None:
        values, counts = np.unique(values.astype(np.int64), return_counts=True)
        self._waiting.append((values, counts))
        self._num_waiting += len(values)
        if self._num_waiting >= MERGE_AT:
            self._merge()

    def frequent_values(self, min_count: int) -> np.ndarray:
        """Return the values that occur at least `min_count` times, sorted."""
        self._merge()
        return self._values[self._counts >= min_count]

    def spill(self, path: Path) -> None:
        """Write all values and counts as a sorted run, and clear them."""
        self._merge()
        path.write_bytes(np.stack([self._values, self._counts]).data)
        self._values = self._counts = np.empty(0, np.int64)

    def _merge(self) -> None:
        values = np.concatenate([self._values, *(v for v, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(c for _, c in self._waiting)])
        self._waiting, self._num_waiting = [], 0
        self._values, self._counts = _add_up(values, counts)


def merge_runs(
    paths: Sequence[Path], min_count: int, out: Path, *, max_values: int = MERGE_AT
) -> None:
    """Write the values that occur at least `min_count` times in all runs together, sorted.

    Args:
        paths: of runs written by `ValueCounter.spill`.
        min_count: occurrences that give a value an entry.
        out: the output file, which `map_values` reads.
        max_values: the approximate number of values in memory at once.
    """
    runs = [_Run(path, path.stat().st_size // 16) for path in paths]
    with out.open("wb") as file:
        for pieces in _iterate_ranges(runs, max_values) if runs else ():
            values, counts = _add_up(*np.concatenate(pieces, axis=1))
            file.write(values[counts >= min_count].data)


def map_values(path: Path) -> np.ndarray:
    """Return the int64 values of a file, memory-mapped."""
    if not path.stat().st_size:
        return np.empty(0, np.int64)
    return np.asarray(np.memmap(path, np.int64, mode="r"))


class _Run(NamedTuple):
    """A file with sorted values and their counts."""

    path: Path
    num_values: int

    def read_values(self) -> np.ndarray:
        return np.fromfile(self.path, np.int64, self.num_values)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read a range of values, and their counts, [2, N].

        They are not mapped: the pages that the system reads ahead of every run would not fit into
        little memory, and be read again for each range.
        """
        block = np.empty((2, stop - start), np.int64)
        with self.path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # not on macOS
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for row, first in zip(block, (0, self.num_values)):
                file.seek(8 * (first + start))
                row[:] = np.fromfile(file, np.int64, stop - start)
        return block


def _iterate_ranges(runs: Sequence[_Run], max_values: int) -> Iterator[list[np.ndarray]]:
    """Yield the values and counts of sorted runs in one range after another, each [2, N].

    Every n-th value of each run is a sample. Between two bounds a run has at most n times as many
    values as samples, plus n.
    """
    step = max(1, max_values // (2 * max(len(runs), 1)))
    samples = np.sort(np.concatenate([run.read_values()[::step].copy() for run in runs]))
    bounds = np.unique(samples[:: max(1, max_values // (2 * step))])[1:]
    ends = [np.r_[np.searchsorted(run.read_values(), bounds), run.num_values] for run in runs]
    starts = [0] * len(runs)
    for number in range(len(bounds) + 1):
        stops = [int(end[number]) for end in ends]
        yield [run.read(a, b) for run, a, b in zip(runs, starts, stops)]
        starts = stops


def _add_up(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each value once, sorted, and the sum of its counts."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    first = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    return values[first], np.add.reduceat(counts[order], first) if len(first) else counts


def look_up_ids(values: np.ndarray, vocabulary: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Map values to ids: FIRST_VALUE_ID onwards, in the order of the vocabulary.

    Args:
        values: [R] int64.
        vocabulary: sorted int64.
        missing: [R] bool.

    Returns:
        [R] int32.
    """
    ids = np.full(len(values), UNKNOWN_ID, np.int32)
    if len(vocabulary) < SORTED_FROM:
        _look_up(values, vocabulary, FIRST_VALUE_ID, ids)
    else:
        # In ascending order, neighbours share cache lines and mapped pages. Of a vocabulary that
        # exceeds memory, each block is read once for all values.
        order = np.argsort(values)
        ordered, ordered_ids, done = values[order], ids.copy(), 0
        for start in range(0, len(vocabulary), SEARCHED_AT_ONCE):
            block = vocabulary[start : start + SEARCHED_AT_ONCE]
            end = int(np.searchsorted(ordered, block[-1], side="right"))
            _look_up(ordered[done:end], block, FIRST_VALUE_ID + start, ordered_ids[done:end])
            done = end
        ids[order] = ordered_ids
    ids[missing] = MISSING_ID
    return ids


def _look_up(values: np.ndarray, vocabulary: np.ndarray, first_id: int, ids: np.ndarray) -> None:
    """Set the ids of the values that a vocabulary has; its first value has `first_id`."""
    if len(vocabulary) and len(values):
        index = np.minimum(np.searchsorted(vocabulary, values), len(vocabulary) - 1)
        np.copyto(ids, index + first_id, where=vocabulary[index] == values, casting="same_kind")
