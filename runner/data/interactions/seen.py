"""The items that users have seen, which full rankings of held-out rows leave out if asked to.

A row's history is cut to a maximum length and begins anew with a session; what its user has seen is
not. It is a slice of a pool on disk, in which the items of a user lie together.

Shape legend: E events of a partition in the order of users and their times, R rows, V values,
N rows of a split, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.blocks import open_blocks
from runner.data.interactions.histories import (
    Events,
    count_before,
    first_at_same_time,
    first_of_runs,
)
from runner.data.prepare.shards import BLOCK_ROWS, SHARD_ROWS, ShardWriter, shard_name

START, STOP = "seen start", "seen stop"  # of the slice of a row; columns that no batch has
ITEM = "item"  # the column of the pool


def find_seen(
    events: Events, split: int, row_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find what the users of held-out rows have seen.

    It is a user's positive events of all earlier splits, whatever their time, since the model may
    have learnt from them, and those of the rows' own split strictly before a row's time.

    Args:
        events: of a partition.
        split: an index of SPLITS, that of the rows.
        row_R: the rows, as indices of events.

    Returns:
        The pool, as indices of events, and where in it the slice of each row starts and stops, [R].
    """
    first_E = first_of_runs(events, None)
    first_R = first_E[row_R]
    of_rows_E = events.positive_E & np.isin(first_E, first_R)  # of users who have a row
    own_E, earlier_E = of_rows_E & (events.split_E == split), of_rows_E & (events.split_E < split)
    pool = np.flatnonzero(own_E | earlier_E)
    # of each user, events of earlier splits come first, then those of the split by their times
    pool = pool[np.lexsort((own_E[pool], first_E[pool]))]
    own_E1, earlier_E1 = count_before(own_E), count_before(earlier_E)
    end_R = np.searchsorted(first_E, first_R, side="right")
    same_time_R = first_at_same_time(events, first_E)[row_R]
    start_R = own_E1[first_R] + earlier_E1[first_R]
    num_earlier_R = earlier_E1[end_R] - earlier_E1[first_R]
    return pool, start_R, start_R + num_earlier_R + own_E1[same_time_R] - own_E1[first_R]


def add_slices(rows: pa.Table, start_R: np.ndarray, stop_R: np.ndarray) -> pa.Table:
    """Return rows with the slices of the pool that they have."""
    for name, values in ((START, start_R), (STOP, stop_R)):
        rows = rows.append_column(name, pa.array(values, pa.int64()))
    return rows


def move_slices(rows: pa.Table, offset: int) -> pa.Table:
    """Return rows whose slices lie so much further behind in the pool."""
    for name in (START, STOP):
        moved = pc.add(rows[name], offset)
        rows = rows.set_column(rows.schema.get_field_index(name), name, moved)
    return rows


class SeenWriter:
    """Writes the pools of the partitions of one split behind each other."""

    def __init__(self, folder: Path, split: str) -> None:
        self._writer = ShardWriter(folder, _pool_name(split))
        self._num_items = 0

    def add(self, items_V: np.ndarray) -> int:
        """Add the items of a pool; return where in the whole it starts."""
        start = self._num_items
        self._num_items += len(items_V)
        if len(items_V):
            self._writer.write(pa.table({ITEM: items_V}))
        return start

    def close(self) -> None:
        self._writer.close()


class SeenItems:
    """The items that the user of each row of a split has seen, read from the pool as needed.

    In memory are 16 bytes for each row of the split, and the blocks of the last rows asked for.

    Args:
        folder: with the pool.
        split: its name.
        start_N: where in the pool the slice of each row starts.
        stop_N: where it stops.
    """

    def __init__(self, folder: Path, split: str, start_N: np.ndarray, stop_N: np.ndarray) -> None:
        self._folder, self._name = folder, _pool_name(split)
        self._start_N, self._stop_N = start_N, stop_N
        self._blocks: dict[int, np.ndarray] = {}

    def find(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `runner.data.core.dataset.SeenItems`.

        Raises:
            DataError: naming a file of the pool that cannot be read.
        """
        start_B, stop_B = self._start_N[rows_B], self._stop_N[rows_B]
        length_B = stop_B - start_B
        row_V = np.repeat(np.arange(len(rows_B)), length_B)
        begin_B = np.cumsum(length_B) - length_B
        place_V = np.arange(len(row_V)) + np.repeat(start_B - begin_B, length_B)
        needed, block_V = np.unique(place_V // BLOCK_ROWS, return_inverse=True)
        self._read(needed)
        offsets = np.cumsum([0, *(len(self._blocks[n]) for n in needed)])
        items = np.concatenate([np.empty(0, np.int64), *(self._blocks[n] for n in needed)])
        return row_V, items[offsets[block_V] + place_V % BLOCK_ROWS]

    def _read(self, needed: Sequence[int] | np.ndarray) -> None:
        """Hold the blocks that are needed, and no others."""
        self._blocks = {n: self._blocks[n] for n in needed if n in self._blocks}
        blocks_of_file = SHARD_ROWS // BLOCK_ROWS  # all files and blocks but the last are full
        missing = np.array([n for n in needed if n not in self._blocks], np.int64)
        for number in np.unique(missing // blocks_of_file):
            with closing(open_blocks(self._folder / shard_name(self._name, int(number)))) as file:
                for block in missing[missing // blocks_of_file == number]:
                    column = file.read([int(block % blocks_of_file)], [ITEM])[ITEM]
                    self._blocks[int(block)] = column.to_numpy()


def _pool_name(split: str) -> str:
    return f"seen-{split}"
