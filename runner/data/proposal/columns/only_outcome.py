"""Finds the label of a table of users and items where its name does not say that it is one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from runner.data.proposal.columns.column_names import guess_kind, sounds_like_time
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_events import (
    find_positions,
    is_constant_within,
    may_order,
)
from runner.data.proposal.columns.guess_label import (
    MAX_RATINGS,
    find_label_candidates,
    is_binary,
)
from runner.data.proposal.columns.guess_roles import FEATURES, guess_roles
from runner.data.proposal.columns.interactions import find_event_parts
from runner.data.proposal.columns.schema_hints import Hints

CALENDAR = re.compile(r"week|month|year|quarter|season|\bdow\b", re.I)


def find_only_outcome(
    table: pa.Table, columns: Sequence[ColumnStatistics], hints: Hints
) -> tuple[str, ...]:
    """Return the only column that may be the outcome of a user with an item, whatever its name.

    Empty where there is none, or several, and where a hint or a name says what is predicted. Ids,
    times, and what describes the user or the item are none. In a table with times, which may tell
    the next item, it has few numbers that are no ids, mostly above the lowest, as ratings are.
    """
    known = {*hints.numeric, *hints.categorical, *hints.drop, hints.weight, hints.time}
    free = [f for f in columns if f.name not in known]
    users, items, times = (find_event_parts(free, part) for part in ("user", "item", "time"))
    is_told = hints.labels or hints.user or hints.item or hints.task == "next_item"
    if is_told or not len(users) == len(items) == 1 or find_label_candidates(free)[0]:
        return ()
    has_order = bool(times or hints.time or find_positions(table, users[0].name, free))
    owners, roles = (users[0].name, items[0].name), guess_roles(free)
    found = [
        f
        for f in free
        if f.name not in owners and _may_be_outcome(f, roles[f.name].name)
        if not any(is_constant_within(table, f.name, owner) for owner in owners)
    ]
    if len(found) != 1 or may_order(only := found[0]) or CALENDAR.search(only.name):
        return ()
    is_measured = guess_kind(only.name) == "quantity" or not only.is_whole
    is_rating = is_measured and 2 < only.num_distinct <= MAX_RATINGS and only.median != only.low
    return (only.name,) if is_rating or not has_order else ()


def _may_be_outcome(f: ColumnStatistics, role: str) -> bool:
    """Tell whether a column has two values, a few or quantities, and is not named otherwise."""
    is_named = guess_kind(f.name) == "id" or sounds_like_time(f.name)
    if is_named or role not in FEATURES or not f.is_single or f.missing_share:
        return False
    are_few = f.num_distinct <= MAX_RATINGS and (f.low is not None or bool(f.values))
    return is_binary(f) or (f.num_distinct > 2 and (are_few or role == "numeric"))
