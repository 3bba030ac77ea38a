"""Finds the rows of many 64-bit ids at once, while ids are added and removed.

N distinct ids, sorted where an argument says so; R rows.
"""

from __future__ import annotations

import numpy as np

_LEAST_RECENT = 1 << 14
_RECENT_SHARE = 4  # the recent ids are merged when they reach this fraction of the others
_GONE = -1  # the row of a removed id, until the next merge

Pairs = tuple[np.ndarray, np.ndarray]  # sorted ids, int64, and their rows, int32


class RowIndex:
    """A map from ids to rows as two sorted arrays: a large one, and one of recent ids.

    New ids join the small array, which is merged into the large one when it has grown to a quarter
    of it. So no call sorts the large array: a merge copies it, 5 ms for a million ids. A removal
    never merges, so that no call does both.

    Args:
        ids: distinct int64, in any order.
        rows: of the ids.
    """

    def __init__(self, ids: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(ids)
        self._main: Pairs = (ids[order], rows[order].astype(np.int32))
        self._recent = _NOTHING
        self._any_gone = self._just_removed = False

    def look_up(self, ids_N: np.ndarray, absent: int) -> np.ndarray:
        """Return the rows of sorted ids, [N] int64, and `absent` for ids without one."""
        rows_N = np.full(len(ids_N), absent, np.int64)
        for pairs in (self._main, self._recent):  # an id in both has been removed from the first
            indices, at = _find(pairs, ids_N)
            rows = pairs[1][at]
            rows_N[indices] = np.where(rows == _GONE, absent, rows) if self._any_gone else rows
        return rows_N

    def insert(self, ids_N: np.ndarray, rows_N: np.ndarray) -> None:
        """Add sorted ids that have no row."""
        if self._any_gone:  # a returning id may be among the recent ones
            self._recent = _without_gone(self._recent)
        self._recent = _merge(self._recent, (ids_N, rows_N.astype(np.int32)))
        limit = max(_LEAST_RECENT, len(self._main[0]) // _RECENT_SHARE)
        if len(self._recent[0]) > limit and not self._just_removed:
            self._merge_recent()
        self._just_removed = False

    def remove(self, is_gone_R: np.ndarray) -> None:
        """Remove the ids of some rows.

        Args:
            is_gone_R: whether a row has lost its id.
        """
        for _, rows in (self._main, self._recent):  # by row, since ids would have to be searched
            rows[is_gone_R[rows]] = _GONE  # _GONE indexes the last row, and stays in any case
        self._any_gone = self._just_removed = True

    def _merge_recent(self) -> None:
        if self._any_gone:
            self._main = _without_gone(self._main)
            self._any_gone = False
        self._main, self._recent = _merge(self._main, self._recent), _NOTHING


_NOTHING: Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int32))


def _find(pairs: Pairs, ids_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which of some sorted ids are in the pairs, and their indices."""
    ids = pairs[0]
    if not len(ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at_N = np.minimum(np.searchsorted(ids, ids_N), len(ids) - 1)
    indices = np.flatnonzero(ids[at_N] == ids_N)
    return indices, at_N[indices]


def _without_gone(pairs: Pairs) -> Pairs:
    is_kept = pairs[1] != _GONE
    return pairs[0][is_kept], pairs[1][is_kept]


def _merge(large: Pairs, small: Pairs) -> Pairs:
    at = np.searchsorted(large[0], small[0]) + np.arange(len(small[0]))
    from_large = np.ones(len(large[0]) + len(small[0]), bool)
    from_large[at] = False
    merged = []
    for old, new in zip(large, small):
        both = np.empty(len(from_large), old.dtype)
        both[from_large], both[at] = old, new
        merged.append(both)
    return merged[0], merged[1]
