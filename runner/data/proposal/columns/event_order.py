"""Finds what orders the events of a user where their time does not, such as a day for a session.

R rows of the sample, S of those rows whose user has several events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from runner.data.proposal.columns.column_names import guess_kind
from runner.data.proposal.columns.column_statistics import ColumnStatistics
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
