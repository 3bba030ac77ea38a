"""Histories: for each row the user's events before its time, as slices of sorted events.

Shape legend: E events of a partition in the order of users and their times, R rows, V values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from runner.data.interactions.declaration import GAP_BUCKETS, Interactions
from runner.data.prepare.recipe import SPLITS


@dataclass(frozen=True)
class Events:
    """The events of some users, sorted by user, time and position in the files."""

    users_E: np.ndarray  # int64
    times_E: np.ndarray  # float64, seconds
    split_E: np.ndarray  # int8, indices of SPLITS
    positive_E: np.ndarray  # bool, may be in a history
    target_E: np.ndarray  # bool, may be a row


@dataclass(frozen=True)
class Rows:
    """Rows of one split: row r is event `row_R[r]`; its history is `pool[start_R[r] : stop_R[r]]`.

    `pool` contains the indices of the events that rows of this split may see.
    """

    row_R: np.ndarray
    start_R: np.ndarray
    stop_R: np.ndarray
    pool: np.ndarray

    def take(self, part: slice | np.ndarray) -> Rows:
        return Rows(self.row_R[part], self.start_R[part], self.stop_R[part], self.pool)

    def flat_history(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the events of all histories, [V], and the offsets of the rows, [R + 1] int32."""
        lengths_R = self.stop_R - self.start_R
        offsets_R1 = np.r_[0, np.cumsum(lengths_R)]
        places_V = np.repeat(self.start_R - offsets_R1[:-1], lengths_R) + np.arange(offsets_R1[-1])
        return self.pool[places_V], offsets_R1.astype(np.int32)


def make_rows(events: Events, split: int, settings: Interactions) -> Rows:
    """Find the rows of a split, and the history of each.

    A history has only events strictly before the row's time, neither the row itself nor one at the
    same time, of the row's split and earlier ones, so that a train row never sees held-out events.

    Args:
        split: an index of SPLITS.
    """
    num_events = len(events.users_E)
    visible_E = events.positive_E & (events.split_E <= split)
    in_pool_E1 = count_before(visible_E)
    begin_E = first_of_runs(events, settings.session_gap_s)
    row_R = np.flatnonzero(events.target_E & (events.split_E == split))
    if split == SPLITS.index("train") and settings.train_on != "every":
        length = settings.max_length if settings.train_on == "windows" else num_events + 1
        row_R = _last_of_windows(row_R[events.positive_E[row_R]], begin_E, length)
    stop_R = in_pool_E1[first_at_same_time(events, begin_E)[row_R]]
    start_R = np.maximum(in_pool_E1[begin_E[row_R]], stop_R - settings.max_length)
    rows = Rows(row_R, start_R, stop_R, np.flatnonzero(visible_E))
    return rows.take(stop_R - start_R >= settings.min_history)


def latest_rows(events: Events, split: int, settings: Interactions) -> Rows:
    """Return a row for each user at their last event, whose history ends with that event.

    Users without an event allowed in histories have no row.
    """
    is_last_E = np.ones(len(events.users_E), bool)
    is_last_E[:-1] = events.users_E[1:] != events.users_E[:-1]
    in_pool_E1 = count_before(events.positive_E)
    row_R = np.flatnonzero(is_last_E)
    begin_R = first_of_runs(events, settings.session_gap_s)[row_R]
    stop_R = in_pool_E1[row_R + 1]
    start_R = np.maximum(in_pool_E1[begin_R], stop_R - settings.max_length)
    return Rows(row_R, start_R, stop_R, np.flatnonzero(events.positive_E)).take(stop_R > start_R)


def count_before(mask_E: np.ndarray) -> np.ndarray:
    """Return how many events of a mask precede each event, and the end: [E + 1] int64."""
    counts_E1 = np.zeros(len(mask_E) + 1, np.int64)
    np.cumsum(mask_E, out=counts_E1[1:])
    return counts_E1


def history_columns(
    rows: Rows, times_E: np.ndarray, sources: Mapping[str, pa.Array], gap_name: str | None
) -> dict[str, pa.Array]:
    """Return the list columns of rows.

    Args:
        times_E: seconds.
        sources: name of a sequence -> the values of all events, [E].
        gap_name: of the sequence of times from each event to its row, in buckets; None: none.
    """
    events_V, offsets_R1 = rows.flat_history()
    offsets, places = pa.array(offsets_R1), pa.array(events_V)
    columns = {
        name: pa.ListArray.from_arrays(offsets, values_E.take(places))
        for name, values_E in sources.items()
    }
    if gap_name is not None:
        gaps_V = np.repeat(times_E[rows.row_R], np.diff(offsets_R1)) - times_E[events_V]
        columns[gap_name] = pa.ListArray.from_arrays(offsets, pa.array(bucket_gaps(gaps_V)))
    return columns


def bucket_gaps(gaps_V: np.ndarray) -> np.ndarray:
    """Return the integer part of log2(1 + seconds), below GAP_BUCKETS: [V] int32."""
    return np.asarray(np.minimum(np.log2(1 + gaps_V), GAP_BUCKETS - 1).astype(np.int32))


def first_of_runs(events: Events, session_gap_s: float | None) -> np.ndarray:
    """Return for each event the index of the first one of its user, or session: [E]."""
    starts_E = np.ones(len(events.users_E), bool)
    starts_E[1:] = events.users_E[1:] != events.users_E[:-1]
    if session_gap_s is not None:
        starts_E[1:] |= np.diff(events.times_E) > session_gap_s
    return _latest_mark(starts_E)


def first_at_same_time(events: Events, begin_E: np.ndarray) -> np.ndarray:
    """Return for each event the index of the first one of the same run at the same time: [E]."""
    starts_E = np.ones(len(events.users_E), bool)
    starts_E[1:] = (events.times_E[1:] != events.times_E[:-1]) | (begin_E[1:] != begin_E[:-1])
    return _latest_mark(starts_E)


def _latest_mark(marks_E: np.ndarray) -> np.ndarray:
    """Return for each event the index of the last mark up to it: [E]; the first event is marked."""
    return np.asarray(np.maximum.accumulate(np.where(marks_E, np.arange(len(marks_E)), 0)))


def _last_of_windows(row_R: np.ndarray, begin_E: np.ndarray, length: int) -> np.ndarray:
    """Keep every `length`-th row of each run, counted from its last one."""
    if not len(row_R):
        return row_R
    run_R = begin_E[row_R]
    last_R = np.r_[run_R[1:] != run_R[:-1], True]
    lasts = np.flatnonzero(last_R)
    ends_R = lasts[np.searchsorted(lasts, np.arange(len(row_R)))]
    return np.asarray(row_R[(ends_R - np.arange(len(row_R))) % length == 0])
