"""Finds what orders events, such as a day for a session, and histories that would mislead.

Histories may be empty, or hold an event several times. R rows of the sample, S of those rows whose
user has several events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.columns import is_list
from runner.data.proposal.columns.column_names import POSITION, guess_kind
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_values import LEAST_COPIES, describe_impressions
from runner.data.proposal.columns.judging_sample import value_codes

ORDER = re.compile(r"time|stamp|step|order|seq", re.I)
MOST_TIED = 0.9  # share of events whose user has one time only
LEAST_APART = 0.9  # share of events with a value that no other event of the user has


def find_finer_time(
    table: pa.Table, user: str, time: str, candidates: Sequence[ColumnStatistics]
) -> tuple[str, list[str]]:
    """Return a column that orders a user's events if they all have one time, and a note on it.

    A history holds events strictly before its own, so that nearly all would be empty. Both are
    empty if the time orders the events, or no other column does.

    Args:
        candidates: columns that have no part in an event.
    """
    users_R = value_codes(table[user])
    several_R = (np.bincount(users_R)[users_R] > 1) & table[user].is_valid().to_numpy()
    users_S = users_R[several_R]
    if not len(users_S):
        return "", []

    def pairs(name: str) -> np.ndarray:
        """Return the distinct pairs of a user and a value, [N, 2]."""
        values_S = value_codes(table[name])[several_R]
        return np.unique(np.stack([users_S, values_S]), axis=1).T

    times = np.bincount(pairs(time)[:, 0])
    if (times[users_S] == 1).mean() < MOST_TIED:
        return "", []
    names = [
        f.name
        for f in candidates
        if may_order(f) and not f.missing_share and len(pairs(f.name)) >= LEAST_APART * len(users_S)
    ]
    why = (
        f"{time}: for most {user} all events have the same time, and a history holds only those "
        "of earlier times"
    )
    if len(names) == 1:
        return names[0], [
            f"{why}: {names[0]} is used for the order instead; --time {time} uses {time} all the "
            "same"
        ]
    return "", [
        f"{why}, so nearly all histories would be empty: --time NAME names the column that orders "
        "the events, such as "
        f"{' or '.join(names) or 'the number of each row, where rows are in order'}"
    ]


def may_order(f: ColumnStatistics) -> bool:
    """Tell whether a number is named like a position in an order, not like a duration."""
    is_number = f.low is not None and not f.separator
    return is_number and bool(ORDER.search(f.name)) and not guess_kind(f.name)


def find_positions(table: pa.Table, user: str, candidates: Sequence[ColumnStatistics]) -> list[str]:
    """Return numbers that count the events of each user, such as the places in a playlist."""
    if 2 * pc.count_distinct(table[user]).as_py() > table.num_rows:
        return []
    most = pc.max(pc.value_counts(table[user]).field("counts")).as_py()  # events of one user
    return [
        f.name
        for f in candidates
        if f.num_distinct <= most and f.is_single and f.is_whole and not f.missing_share
        if may_order(f) or (f.low is not None and POSITION.fullmatch(f.name))
        if table.group_by([user, f.name]).aggregate([]).num_rows >= LEAST_APART * table.num_rows
    ]


def is_constant_within(table: pa.Table, name: str, owner: str) -> bool:
    """Tell whether all rows of each user, or item, have one value of a column, such as its age.

    It cannot be told, and is false, unless `owner` has several rows of each on average.
    """
    num_owners = pc.count_distinct(table[owner], mode="all").as_py()
    pairs = table.group_by([owner, name]).aggregate([])
    return bool(2 * num_owners <= table.num_rows and pairs.num_rows == num_owners)


def describe_events(
    table: pa.Table, parts: tuple[str, str, str], columns: Sequence[ColumnStatistics]
) -> list[str]:
    """Return notes on rows that may not be single events, and on events that are repeated.

    Args:
        parts: the columns of users, items and times.
        columns: statistics of all that may have a part in an event.
    """
    user, item, time = parts
    shown = [f for f in columns if f.name == item]
    return [
        *describe_impressions(table, shown),
        *_describe_single_events(table, user, item, columns),
        *_describe_repeated_events(table, user, item, time),
    ]


def _describe_single_events(
    table: pa.Table, user: str, item: str, columns: Sequence[ColumnStatistics]
) -> list[str]:
    """Return a note if no user of the sample has two events, so that every history is empty.

    If another column holds lists, they may be histories; the note shows how to explode them.
    """
    if pc.count_distinct(table[user]).as_py() < table.num_rows:
        return []
    note = f"each {user} has one row, and a history has the other events of its user"
    lists = [f for f in columns if f.separator != "json" and not f.vector_size]
    lists = [f for f in lists if is_list(f.type) or f.separator]
    if lists:
        name, key = repr(lists[0].name), repr(item)
        split = f".str.split({lists[0].separator!r})" if lists[0].separator else ""
        note += (
            f"; where {lists[0].name} has them, with pandas, `t[{key}] = [[*(h if hasattr(h, "
            f"'__len__') else ()), i] for h, i in zip(t[{name}]{split}, t[{key}])]; t = t.explode("
            f"{key}, ignore_index=True).drop(columns={name}); t.assign(step=t.index)"
            ".to_parquet('events.parquet')` makes them events, and `python -m runner schema "
            f"events.parquet --user {user} --item {item} --time step` reads those"
        )
    return [note]


def _describe_repeated_events(table: pa.Table, user: str, item: str, time: str) -> list[str]:
    """Return a note if several events of the sample have the same user, item and time."""
    parts = [user, item, time]
    share = 1 - table.group_by(parts).aggregate([]).num_rows / table.num_rows
    if share < LEAST_COPIES:
        return []
    return [
        f"{share:.1%} of the events have the {user}, {item} and {time} of another, as where "
        "each tag of a bookmark is a row, and count as further events: a user's last two, "
        f"which are held out, may be one; with pandas, `t = t.drop_duplicates({parts})` leaves one "
        "of each"
    ]
