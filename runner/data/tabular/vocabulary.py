"""Vocabularies of integer values: counted in pieces, kept as sorted arrays, never as objects."""

from __future__ import annotations

import numpy as np

UNKNOWN_ID, MISSING_ID, FIRST_VALUE_ID = (
    0,
    1,
    2,
)  # ids of a value outside the vocabulary, of none, of the first
MERGE_AT = 1 << 22  # waiting values: bounds memory beyond the distinct ones


class ValueCounter:
    """How often every value occurs."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_waiting = 0

    def add(self, values: np.ndarray) -> None:
        found = np.unique(values.astype(np.int64), return_counts=True)
        self._waiting.append(found)
        self._num_waiting += len(found[0])
        if self._num_waiting >= MERGE_AT:
            self._merge()

    def frequent_values(self, min_count: int) -> np.ndarray:
        """Sorted values that occur at least `min_count` times."""
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
    """Ids, int32: FIRST onwards in the vocabulary's order. `missing`: [R] bool."""
    ids = np.full(len(values), UNKNOWN_ID, np.int32)
    if len(vocabulary):
        place = np.minimum(np.searchsorted(vocabulary, values), len(vocabulary) - 1)
        ids = np.where(vocabulary[place] == values, place + FIRST_VALUE_ID, UNKNOWN_ID).astype(
            np.int32
        )
    ids[missing] = MISSING_ID
    return ids
