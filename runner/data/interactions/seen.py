"""The items that users have seen, which full rankings of held-out rows exclude if so configured.

A row's history is cut to a maximum length and begins anew with a session; the items its user has
seen are not. They are a slice of a pool on disk, in which the items of a user are contiguous.

Shape legend: E events of a partition in the order of users and their times, R rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.interactions.histories import (
    Events,
    count_before,
    first_at_same_time,
    first_of_runs,
)
from runner.data.prepare.shards import ShardWriter
from runner.data.read.seen_items import START, STOP, pool_name


@dataclass(frozen=True)
class Seen:
    """The items that the users of rows have seen.

    Args:
        pool: indices of events.
        start_R: where the slice of each row starts in it.
        stop_R: where it ends.
    """

    pool: np.ndarray
    start_R: np.ndarray
    stop_R: np.ndarray

    def append_slices(self, rows: pa.Table, first: int) -> pa.Table:
        """Return a table of the rows from `first` on, with their slices."""
        part = slice(first, first + rows.num_rows)
        for name, values_R in ((START, self.start_R[part]), (STOP, self.stop_R[part])):
            rows = rows.append_column(name, pa.array(values_R, pa.int64()))
        return rows


def find_seen(events: Events, split: int, row_R: np.ndarray) -> Seen:
    """Find the items that the users of held-out rows have seen.

    They are the user's positive events of all earlier splits, whatever their time, since the model
    may have learnt from them, and those of the rows' own split strictly before a row's time.

    Args:
        split: an index of SPLITS, that of the rows.
        row_R: the rows, as indices of events.
    """
    first_E = first_of_runs(events, None)
    first_R = first_E[row_R]
    of_rows_E = events.positive_E & np.isin(first_E, first_R)  # of users with a row
    own_E, earlier_E = of_rows_E & (events.split_E == split), of_rows_E & (events.split_E < split)
    pool = np.flatnonzero(own_E | earlier_E)
    # of each user, events of earlier splits come first, then those of the split by their times
    pool = pool[np.lexsort((own_E[pool], first_E[pool]))]
    own_E1, earlier_E1 = count_before(own_E), count_before(earlier_E)
    end_R = np.searchsorted(first_E, first_R, side="right")
    same_time_R = first_at_same_time(events, first_E)[row_R]
    start_R = own_E1[first_R] + earlier_E1[first_R]
    num_earlier_R = earlier_E1[end_R] - earlier_E1[first_R]
    num_own_R = own_E1[same_time_R] - own_E1[first_R]
    return Seen(pool, start_R, start_R + num_earlier_R + num_own_R)


class SeenWriter:
    """Writes the pools of all partitions one after another, for each held-out split."""

    def __init__(self, folder: Path, splits: Iterable[str]) -> None:
        names = [pool_name(split) for split in splits]
        self._writers = {name: ShardWriter(folder, name) for name in names}
        self._start = dict.fromkeys(names, 0)  # of the last pool
        self._stop = dict.fromkeys(names, 0)

    def take_pools(self, blocks: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        """Write the pools of a partition and yield its rows, with slices of the joint pool.

        Args:
            blocks: split and rows, or, before the rows of a split, `pool_name` and its pool.
        """
        for name, block in blocks:
            if name in self._writers:
                self._start[name] = self._stop[name]
                self._stop[name] += len(block)
                if len(block):
                    self._writers[name].write(block)
            elif (start := self._start.get(pool_name(name))) is None:
                yield name, block
            else:
                yield name, _shift_slices(block, start)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _shift_slices(rows: pa.Table, offset: int) -> pa.Table:
    for name in (START, STOP):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.add(rows[name], offset))
    return rows
