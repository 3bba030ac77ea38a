"""The map from raw ids to the rows of one table, which grows with the ids seen.

The map is a function of the sightings alone, update by update, independent of clocks and random
numbers. V sightings of an update, U distinct ids among them, R rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.data.columns.vocabulary import FIRST_VALUE_ID, MISSING_ID, UNKNOWN_ID
from runner.data.growing.index import RowIndex
from runner.data.growing.settings import NO_ID, Growth
from runner.data.growing.sketch import CountSketch

LEAST_ROWS = FIRST_VALUE_ID + 1
_MAX_USE = np.int32(2**31 - 1)  # used by no id: marks rows that cannot be evicted


@dataclass(frozen=True)
class _Distinct:
    """The distinct ids of an update, sorted."""

    ids_U: np.ndarray
    counts_U: np.ndarray
    first_U: np.ndarray  # index of the first sighting of each
    order_V: np.ndarray  # the sightings sorted by id

    @classmethod
    def of(cls, ids_V: np.ndarray) -> _Distinct:
        # unstable sorting is five times as fast; no result depends on the order of equal ids
        order_V = np.argsort(ids_V)
        sorted_V = ids_V[order_V]
        starts_U = np.flatnonzero(np.concatenate([[True], sorted_V[1:] != sorted_V[:-1]]))
        return cls(
            sorted_V[starts_U],
            np.diff(starts_U, append=len(ids_V)),
            np.minimum.reduceat(order_V, starts_U),
            order_V,
        )

    def by_appearance(self, places: np.ndarray) -> np.ndarray:
        """Return indices of ids, sorted by the first sighting of the ids."""
        place_V = np.full(len(self.order_V), -1)
        place_V[self.first_U[places]] = places
        return place_V[place_V >= 0]

    def spread(self, rows_U: np.ndarray) -> np.ndarray:
        """Return the row of each sighting, [V]."""
        rows_V = np.empty(len(self.order_V), np.int64)
        rows_V[self.order_V] = np.repeat(rows_U, self.counts_U)
        return rows_V


class IdMap:
    """Gives each id its own row, in order of appearance.

    Row 0 is shared by ids without a row, row 1 is for missing values; the others are assigned, the
    lowest free one first. `state` holds everything needed to continue: after reading other arrays
    into it in place, call `rebuild`.

    Args:
        num_rows: of the table, at least 3.
        growth: when an id gets a row, and when it loses it.
    """

    def __init__(self, num_rows: int, growth: Growth) -> None:
        assert num_rows >= LEAST_ROWS, num_rows
        self.num_rows, self.growth = num_rows, growth
        self._ids_R = np.full(num_rows, NO_ID, np.int64)  # NO_ID: the row is free
        self._updates = np.zeros(1, np.int64)
        self.state: dict[str, np.ndarray] = {"ids": self._ids_R, "updates": self._updates}
        if growth.evict is not None:  # update of an id's last sighting, or their number
            self._use_R = np.zeros(num_rows, np.int32)
            self.state["use"] = self._use_R
        if growth.min_count > 1:
            self._sketch = CountSketch(num_rows)
            self.state |= {"cells": self._sketch.cells, "sightings": self._sketch.sightings}
        self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the index after `state` was changed from outside."""
        rows = _held_rows(self._ids_R)
        self._index = RowIndex(self._ids_R[rows], rows)
        free = np.flatnonzero(self._ids_R[FIRST_VALUE_ID:] == NO_ID) + FIRST_VALUE_ID
        self._free: np.ndarray = free  # ascending

    @property
    def num_held(self) -> int:
        """The number of ids with a row."""
        return self.num_rows - FIRST_VALUE_ID - len(self._free)

    @property
    def num_updates(self) -> int:
        """The number of observed updates."""
        return int(self._updates[0])

    def look_up(self, ids_V: np.ndarray) -> np.ndarray:
        """Return the current rows of ids, [V] int64; the map is unchanged."""
        if not len(ids_V):
            return np.zeros(0, np.int64)
        distinct = _Distinct.of(ids_V)
        return distinct.spread(self._look_up(distinct.ids_U))

    def observe(self, ids_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count the sightings of one update, evict if it is due, and give rows to new ids.

        Args:
            ids_V: int64, in the order of the rows of the whole update.

        Returns:
            The rows of the ids, [V] int64; and the rows that lost their ids, in
            ascending order, whose weights and states must be reset before the look-up.
        """
        self._updates += 1
        if not len(ids_V):
            return ids_V, self._evict(ids_V)
        distinct = _Distinct.of(ids_V)
        rows_U = self._look_up(distinct.ids_U)
        is_held_U = rows_U >= FIRST_VALUE_ID
        self._note_use(rows_U[is_held_U], distinct.counts_U[is_held_U])
        evicted = self._evict(rows_U[is_held_U])
        new = np.flatnonzero(rows_U == UNKNOWN_ID)
        if self.growth.min_count > 1 and len(new):
            counts = self._sketch.add(distinct.ids_U[new], distinct.counts_U[new])
            new = new[counts >= self.growth.min_count]
        new = distinct.by_appearance(new)[: len(self._free)]
        if len(new):
            rows_U[new], self._free = self._free[: len(new)], self._free[len(new) :]
            is_new_U = np.zeros(len(rows_U), bool)
            is_new_U[new] = True
            rows = rows_U[is_new_U]
            self._ids_R[rows] = distinct.ids_U[is_new_U]
            self._index.insert(distinct.ids_U[is_new_U], rows)
            self._note_use(rows, distinct.counts_U[is_new_U])
        return distinct.spread(rows_U), evicted

    def adopt(self, ids: np.ndarray) -> None:
        """Give rows to distinct ids without a sighting, as long as there are free rows.

        Eviction therefore takes these rows first.
        """
        rows = self._free[: len(ids)]
        self._ids_R[rows] = ids[: len(rows)]
        self.rebuild()

    def renumber(self) -> tuple[np.ndarray, np.ndarray]:
        """Reassign the rows in ascending order of the ids, as a vocabulary does.

        Returns:
            The ids, sorted, and the previous row of each; its new row is its index plus 2.
        """
        ids, rows = sort_held_rows(self._ids_R)
        target = slice(FIRST_VALUE_ID, FIRST_VALUE_ID + len(rows))
        for name in ("ids", "use"):
            if name in self.state:
                values, free = self.state[name][rows], NO_ID if name == "ids" else 0
                self.state[name][FIRST_VALUE_ID:] = free
                self.state[name][target] = values
        self.rebuild()
        return ids, rows

    def _look_up(self, ids_U: np.ndarray) -> np.ndarray:
        rows_U = self._index.look_up(ids_U, absent=UNKNOWN_ID)
        if ids_U[0] == NO_ID:  # NO_ID is the smallest of all
            rows_U[0] = MISSING_ID
        return rows_U

    def _note_use(self, rows: np.ndarray, counts: np.ndarray) -> None:
        evict = self.growth.evict
        if evict is not None and evict.by == "lru":
            self._use_R[rows] = self.num_updates
        elif evict is not None:
            self._use_R[rows] = np.minimum(self._use_R[rows] + counts, _MAX_USE - 1)

    def _evict(self, in_use: np.ndarray) -> np.ndarray:
        """Free rows of ids that are not in use, until the share of free rows is reached.

        Among equals the lower row is freed first.
        """
        evict, none = self.growth.evict, np.zeros(0, np.int64)
        if evict is None or self.num_updates % evict.every:
            return none
        share = int(evict.share * (self.num_rows - FIRST_VALUE_ID))
        num_needed = max(share, 1) - len(self._free)
        rows = none
        if num_needed > 0:
            use_R = self._use_R.copy()
            for protected in (slice(FIRST_VALUE_ID), self._free, in_use):
                use_R[protected] = _MAX_USE
            bound = min(nth_smallest(use_R, num_needed - 1), int(_MAX_USE) - 1)
            is_evicted_R, equal = use_R < bound, np.flatnonzero(use_R == bound)
            is_evicted_R[equal[: num_needed - np.count_nonzero(is_evicted_R)]] = True
            rows = np.flatnonzero(is_evicted_R)
            self._ids_R[rows], self._use_R[rows] = NO_ID, 0
            self._index.remove(is_evicted_R)
            # a stable sort merges two sorted parts in one pass
            self._free = np.sort(np.concatenate([self._free, rows]), kind="stable")
        if evict.by == "lfu":
            self._use_R >>= 1
        return rows


def sort_held_rows(ids_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids with a row, sorted, and their rows.

    Args:
        ids_R: the state `ids` of a map.
    """
    rows = _held_rows(ids_R)
    rows = rows[np.argsort(ids_R[rows])]
    return ids_R[rows], rows


def _held_rows(ids_R: np.ndarray) -> np.ndarray:
    return np.asarray(np.flatnonzero(ids_R[FIRST_VALUE_ID:] != NO_ID) + FIRST_VALUE_ID)


def nth_smallest(values: np.ndarray, n: int) -> int:
    """Return the value at index n of the sorted int32 values, which are not negative.

    It counts the high and then the low 16 bits: `np.partition` can take 37 ms for a million values
    of which few are distinct.
    """
    high = values >> 16
    up_to = np.cumsum(np.bincount(high))
    bucket = int(np.searchsorted(up_to, n, side="right"))
    before = int(up_to[bucket - 1]) if bucket else 0
    low = np.cumsum(np.bincount(values[high == bucket] & 0xFFFF))
    return bucket << 16 | int(np.searchsorted(low, n - before, side="right"))
