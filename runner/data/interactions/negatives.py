"""Rows with label 0: copies of a row with label 1, with an item that its user has never touched.

Draws depend on the seed, the user and the row, so not on the order of files and partitions.

Shape legend: E events of a partition in the order of users and their times, R rows, D rows of
label 0, I items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.transforms import splitmix64

_SALT = 0x4E6  # keeps these draws apart from others of the same seed
MAX_DRAWS = 100  # of a row, before the items new to its user are enumerated


class Catalogue:
    """Collects the items of all kept events: 8 bytes per item, and its value."""

    def __init__(self) -> None:
        self._known: pa.Table | None = None

    def add(self, keys_R: np.ndarray, values_R: pa.ChunkedArray) -> None:
        """Add items. Args: keys_R: [R] int64. values_R: the item column's value of each."""
        keys, first = np.unique(keys_R, return_index=True)
        new = pa.table({"key": keys, "value": values_R.take(pa.array(first))})
        if self._known is not None:
            is_new = pc.invert(pc.is_in(new["key"], self._known["key"]))
            new = pa.concat_tables([self._known, new.filter(is_new)])
        self._known = new.combine_chunks()

    def draws(self, counts: Mapping[str, int], seed: int) -> DrawnItems:
        """Return the sampler. Args: counts: split -> rows with label 0 for each with label 1."""
        assert self._known is not None  # `scan_events` refuses tables without an event
        known = self._known.sort_by("key")
        return DrawnItems(counts, seed, known["key"].to_numpy(), known["value"].combine_chunks())


@dataclass(frozen=True)
class TouchedItems:
    """The items that the users of a partition have touched, in any split.

    Args:
        user_E: the number of the user of each event, sorted.
        place_E: how many events of the user precede it.
        pairs: user_E * I + the index of the item in the catalogue, sorted, each once.
    """

    user_E: np.ndarray
    place_E: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True)
class DrawnItems:
    """Uniform samples of items.

    Args:
        counts: split -> rows with label 0 for each row with label 1.
        keys_I: the items, sorted.
        values_I: the item column's value of each of them.
    """

    counts: Mapping[str, int]
    seed: int
    keys_I: np.ndarray
    values_I: pa.Array

    def touched(self, users_E: np.ndarray, items_E: np.ndarray) -> TouchedItems:
        """Return the items of users. Args: users_E, items_E: [E] int64, of sorted events."""
        starts_E = np.r_[True, users_E[1:] != users_E[:-1]]
        user_E = np.cumsum(starts_E) - 1
        place_E = np.arange(len(users_E)) - np.flatnonzero(starts_E)[user_E]
        pairs = np.unique(user_E * len(self.keys_I) + np.searchsorted(self.keys_I, items_E))
        return TouchedItems(user_E, place_E, pairs)

    def append(
        self,
        rows: pa.Table,
        columns: tuple[str, str],
        split: str,
        row_R: np.ndarray,
        users_R: np.ndarray,
        touched: TouchedItems,
    ) -> pa.Table:
        """Return the rows with those of label 0, each after the row that it copies.

        A row whose user has touched every item gets none.

        Args:
            rows: [R], of `split`.
            columns: of the item, and of the label.
            row_R: the events of the rows.
            users_R: [R] int64, their users.
        """
        count = self.counts.get(split, 0)
        row_D = np.repeat(np.flatnonzero(rows[columns[1]].to_numpy() > 0), count)
        if not len(row_D):
            return rows
        seed_D = splitmix64(users_R[row_D].view(np.uint64), self.seed + _SALT)
        place_D = touched.place_E[row_R[row_D]] * count + np.arange(len(row_D)) % count
        seed_D = splitmix64(seed_D + place_D.astype(np.uint64), 1)
        item_D = self._draw(seed_D, touched.user_E[row_R[row_D]], touched.pairs)
        row_D, item_D = row_D[item_D >= 0], item_D[item_D >= 0]
        new = rows.take(pa.array(row_D))
        item, label = (rows.schema.get_field_index(name) for name in columns)
        new = new.set_column(item, rows.schema.field(item), self.values_I.take(pa.array(item_D)))
        zeros = pa.array(np.zeros(len(row_D), np.int8)).cast(rows.schema.field(label).type)
        new = new.set_column(label, rows.schema.field(label), zeros)
        order = np.argsort(np.r_[np.arange(rows.num_rows), row_D], kind="stable")
        return pa.concat_tables([rows, new]).take(pa.array(order))

    def _draw(self, seed_D: np.ndarray, user_D: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Return the index of an item in the catalogue, -1 if no new one was found: [D]."""
        num_items = len(self.keys_I)
        item_D = np.full(len(seed_D), -1)
        open_D = np.arange(len(seed_D))
        for draw in range(MAX_DRAWS):
            hashed = splitmix64(seed_D[open_D], 2 + draw) % np.uint64(num_items)
            pair = user_D[open_D] * num_items + hashed.astype(np.int64)
            at = np.minimum(np.searchsorted(pairs, pair), len(pairs) - 1)
            is_new = pairs[at] != pair
            item_D[open_D[is_new]] = pair[is_new] % num_items
            open_D = open_D[~is_new]
            if not len(open_D):
                return item_D
        for row in open_D:  # of users who have touched nearly all items
            first, stop = np.searchsorted(pairs, (user_D[row] + np.arange(2)) * num_items)
            new = np.setdiff1d(np.arange(num_items), pairs[first:stop] % num_items)
            if len(new):
                item_D[row] = new[seed_D[row] % np.uint64(len(new))]
        return item_D
