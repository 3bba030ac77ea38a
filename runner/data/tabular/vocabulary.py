"""Vocabularies of integer values, counted chunk by chunk and kept as sorted arrays."""

from __future__ import annotations

import numpy as np

UNKNOWN_ID = 0  # id of a value that is not in the vocabulary
MISSING_ID = 1
FIRST_VALUE_ID = 2  # id of the vocabulary's first value
MERGE_AT = 1 << 22  # values that wait to be merged at most; bounds memory


class ValueCounter:
    """Counts how often every value occurs."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_waiting = 0

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

    def _merge(self) -> None:
        values = np.concatenate([self._values, *(v for v, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(c for _, c in self._waiting)])
        self._waiting, self._num_waiting = [], 0
        order = np.argsort(values, kind="stable")
        values = values[order]
        first = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        self._values = values[first]
        self._counts = np.add.reduceat(counts[order], first) if len(first) else counts


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
    if len(vocabulary):
        index = np.minimum(np.searchsorted(vocabulary, values), len(vocabulary) - 1)
        found = vocabulary[index] == values
        ids = np.where(found, index + FIRST_VALUE_ID, UNKNOWN_ID).astype(np.int32)
    ids[missing] = MISSING_ID
    return ids
