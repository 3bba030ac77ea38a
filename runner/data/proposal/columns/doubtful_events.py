"""Notes on tables of events whose histories would be empty, or hold an event several times."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.columns import is_list
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_values import LEAST_COPIES, describe_impressions


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
