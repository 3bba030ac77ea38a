"""Recognises a table of events, a user with an item at a time, by its names, types and values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.times import TIME_FORMS
from runner.data.files.read_files import is_text
from runner.data.proposal.columns.column_names import (
    ADDRESS,
    EVENT_TYPE,
    SESSION,
    USER,
    is_outcome,
    is_time_of_row,
    names_item,
    sounds_like_time,
)
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_events import (
    describe_events,
    find_finer_time,
    find_positions,
    is_constant_within,
    may_order,
)
from runner.data.proposal.columns.guess_label import find_label_candidates, holds_ratings, is_binary
from runner.data.proposal.columns.guess_roles import Role, is_time
from runner.data.proposal.columns.schema_hints import Hints
from runner.errors import UserError

TASKS = ("next_item", "label", "regression", "classes")
# history windows that do not overlap hold every event once, as a target or before one
TRAIN_ON, MAX_LENGTH = "windows", 50
MAX_EVENT_TYPES = 20
MOST_NAMED = 5  # columns that may be the items
FINE_SHARE = 0.5  # of the distinct values of another time; days leave their events without an order
MOST_UNKNOWN = 0.5  # share of events without a user; with more, histories are those of sessions


class UnclearColumnError(UserError):
    """Several columns may be the same part of an event. `flag` names the part, without dashes."""

    def __init__(self, flag: str, candidates: Sequence[str]) -> None:
        self.flag, self.candidates = flag, tuple(candidates)
        super().__init__(
            f"the table looks like interactions, and {len(candidates)} columns may be the {flag}: "
            f"{', '.join(candidates)}; --{flag} {candidates[0]} says which, --label NAME "
            "proposes to predict a column instead"
        )


@dataclass(frozen=True)
class EventColumns:
    """The columns of an event."""

    user: str
    item: str
    time: str
    rating: str | None = None


def find_event_columns(
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    named: Mapping[str, str | None],
    *,
    must: bool,
) -> EventColumns | None:
    """Return the columns of user, item and time; None if the table does not look like events.

    Args:
        named: `user`, `item` and `time`, as far as a user has named them.
        must: whether it is known that the table has interactions.

    Raises:
        UnclearColumnError: if several columns may be the same part, and the others are clear.
        UserError: if it must have interactions and a part is not found.
    """
    candidates: dict[str, list[str]] = {}
    for part in ("user", "item", "time"):
        name = named.get(part)
        candidates[part] = [name] if name else [f.name for f in find_event_parts(columns, part)]
    if len(users := candidates["user"]) == 1 < len(items := candidates["item"]):
        # a PIN code is the user's
        others = [name for name in items if not is_constant_within(table, name, users[0])]
        candidates["item"] = others or items
    used = {names[0] for names in candidates.values() if len(names) == 1}
    if len(users) == 1 and not candidates["time"]:
        positions = find_positions(table, users[0], [f for f in columns if f.name not in used])
        candidates["time"] = positions if len(positions) == 1 else []
        used |= set(candidates["time"])
    rating = next((f.name for f in columns if f.name not in used and _may_be_rating(f)), None)
    for part, other in (("item", "user"), ("user", "item")):
        if not candidates[part] and len(candidates[other]) == 1 and candidates["time"]:
            # if the names of a table of events do not say more, any other id
            rest = [f for f in columns if f.name not in {*used, *candidates["time"], rating}]
            candidates[part] = _unnamed_ids(rest, part) if len(rest) < 3 or must else []
    if must and not candidates["time"]:
        free = [f for f in columns if f.name not in used and not pt.is_nested(f.type)]
        times = [f.name for f in free if f.time_form in TIME_FORMS and is_time_of_row(f.name)]
        candidates["time"] = times if len(times) == 1 else []
    if len(candidates["time"]) > 1:
        several = [f for f in columns if f.name in candidates["time"]]
        several = [f for f in several if not f.missing_share] or several
        most = max(f.num_distinct for f in several)
        fine = [f.name for f in several if f.num_distinct > FINE_SHARE * most]
        exact = [n for n in fine if not n.endswith(("_ms", "_s"))]
        candidates["time"] = (exact or fine)[:1]
    if all(candidates.values()):
        for part, names in candidates.items():
            if len(names) > 1:
                raise UnclearColumnError(part, names)
        return EventColumns(
            candidates["user"][0], candidates["item"][0], candidates["time"][0], rating
        )
    if must:
        missing = [part for part, names in candidates.items() if not names]
        more = "; the number of each row will do where rows are in order"
        if missing[0] != "time":
            ids = _unnamed_ids([f for f in columns if f.name not in used], missing[0])
            more = f", such as {' or '.join(ids[:MOST_NAMED])}" if ids else ""
        raise UserError(
            f"--task next_item: no column looks like the {missing[0]}; --{missing[0]} names it"
            f"{more}"
        )
    return None


def find_event_parts(columns: Sequence[ColumnStatistics], part: str) -> list[ColumnStatistics]:
    """Return the columns that may be the `user`, the `item` or the `time` of an event.

    A table's name in front of all names, as Hive writes it, is ignored.
    """
    tables = {f.name[: f.name.rfind(".") + 1] for f in columns}
    table = len(tables.pop()) if len(tables) == 1 else 0
    if part == "user":
        users = [f for f in columns if USER.fullmatch(f.name[table:]) and _is_id(f)]
        sessions = [f for f in columns if SESSION.fullmatch(f.name[table:]) and _is_id(f)]
        are_rare = all(f.missing_share > MOST_UNKNOWN for f in users)  # visitors have no id
        complete = [f for f in sessions if not f.missing_share]
        return complete if are_rare and complete else users or sessions
    if part == "item":
        ids = [f for f in columns if _is_id(f)]
        items = [f for f in ids if names_item(f.name[table:])]
        return items or [f for f in ids if names_item(ADDRESS.sub("", f.name[table:]))]
    times = [f for f in columns if is_time(f) and is_time_of_row(f.name[table:])]
    by_name = [f for f in times if sounds_like_time(f.name[table:])]
    return by_name or (times if len(times) == 1 else [])


def propose_declaration(
    events: EventColumns, columns: Sequence[ColumnStatistics]
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of `interactions`, and notes on what it means."""
    by_name = {f.name: f for f in columns}
    declared: dict[str, Any] = {"user": events.user, "item": events.item, "time": events.time}
    form, notes = by_name[events.time].time_form, []
    if form in TIME_FORMS[1:]:
        declared["time_unit"] = form
    if events.rating:
        f = by_name[events.rating]
        low, high = f.low or 0.0, f.high or 1.0
        middle = (low + high) / 2
        positive = high if is_binary(f) else float(int(middle) + 1)
        declared |= {"rating": events.rating, "positive": positive}
        notes.append(
            f"events with {events.rating} below {positive:g} are left out; interactions.positive "
            "sets another bound, interactions.below=negative keeps them as rows of label 0"
        )
    return declared | {"max_length": MAX_LENGTH, "train_on": TRAIN_ON}, notes


def whole_number_ids(
    events: EventColumns, columns: Sequence[ColumnStatistics], written: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings of users and items that are whole numbers, which text files do not say.

    As texts they would be hashed, and recommended items could not be named.

    Args:
        written: columns of whole numbers such as 12.0.
    """
    integers = {f.name for f in columns if pt.is_integer(f.type)} | set(written)
    settings = {"encode": "vocabulary", "input": "integer"}
    return {name: settings for name in (events.user, events.item) if name in integers}


def event_roles(
    table: pa.Table, events: EventColumns, columns: Sequence[ColumnStatistics]
) -> dict[str, Role]:
    """Return the role of each column: part of an event, or left out."""
    parts = {events.user: "user", events.item: "item", events.time: "time", events.rating: "rating"}
    unused = "not used; interactions.sequences adds ids to the histories"
    of_user = f"not used; it describes the {events.user}, each of which has one value"
    kinds = (
        "perhaps the type of an event: interactions.events predicts some types only, with "
        "train_on: every"
    )

    types = [f.name for f in columns if _may_be_event_type(f)]
    types = [name for name in types if EVENT_TYPE.fullmatch(name)] or types

    def why_unused(f: ColumnStatistics) -> str:
        if not _may_be_event_type(f):
            return unused
        if is_constant_within(table, f.name, events.user):
            return of_user
        of_item = is_constant_within(table, f.name, events.item)
        return unused if of_item or f.name not in types else kinds

    return {
        f.name: Role("interactions", f"the {parts[f.name]}")
        if f.name in parts
        else Role("", why_unused(f))
        for f in columns
    }


def _is_id(f: ColumnStatistics) -> bool:
    return f.is_single and f.num_distinct > 2 and (is_text(f.type) or f.is_whole) and not is_time(f)


def _unnamed_ids(columns: Sequence[ColumnStatistics], part: str) -> list[str]:
    """Return columns that may be the users or the items although their names do not say so."""
    ids = [f for f in columns if _is_id(f)]
    ids = [f for f in ids if not _may_be_event_type(f)] or ids
    if part == "item":  # such as a session, and the number of a step in it
        ids = [f for f in ids if not (SESSION.fullmatch(f.name) or may_order(f))] or ids
    return [f.name for f in ids]


def _may_be_event_type(f: ColumnStatistics) -> bool:
    return is_text(f.type) and 2 <= f.num_distinct <= MAX_EVENT_TYPES and not f.separator


def _may_be_rating(f: ColumnStatistics) -> bool:
    is_stars = holds_ratings(f) and not f.amounts
    return not f.missing_share and (is_stars or (is_binary(f) and is_outcome(f.name)))


def choose_events(
    table: pa.Table, columns: Sequence[ColumnStatistics], hints: Hints, notes: list[str]
) -> EventColumns | None:
    """Return the columns of an event, if the task is to predict the next item, else None.

    By default it is if there are a user, an item and a time, and no column looks like a label.

    Args:
        notes: gets a sentence on the task that is proposed, and how to get the other one.
    """
    must = hints.task == "next_item" or bool(hints.user or hints.item)
    in_other_roles = {*hints.labels, *hints.numeric, *hints.categorical, *hints.drop, hints.weight}
    free = [f for f in columns if f.name not in in_other_roles]
    hinted = {"user": hints.user, "item": hints.item, "time": hints.time}
    labels = hints.labels or find_label_candidates(free)[0]
    if hints.task in ("label", "regression", "classes") or (labels and not must):
        if hints.task is None and all(_has_part(free, hinted)):
            notes.append(
                f"task: predict {', '.join(labels)} from the other columns of each row; --task "
                "next_item proposes to predict the next item from each user's history instead"
            )
        return None
    events = find_event_columns(table, free, hinted, must=must)
    if events is not None:
        event_columns = (events.user, events.item, events.time, events.rating)
        if not hints.user:
            notes += [
                f"{f.name}: is missing in {f.missing_share:.1%} of the events, so each "
                f"{events.user} has a history instead; --user {f.name} makes histories of the "
                "events that have it"
                for f in free
                if USER.fullmatch(f.name) and f.name not in event_columns and f.missing_share < 1
            ]
        if not hints.time:
            free_columns = [f for f in free if f.name not in event_columns]
            finer, order_notes = find_finer_time(table, events.user, events.time, free_columns)
            events = replace(events, time=finer or events.time)
            notes += order_notes
        notes += describe_events(table, (events.user, events.item, events.time), free)
        other = f"--label {labels[0]} proposes to predict it instead" if labels else ""
        other = other or "--label NAME proposes to predict a column instead"
        notes.append(
            f"task: predict the next item ({events.item}) of each user ({events.user}) in the "
            f"order of {events.time}; {other}"
        )
    elif (has := _has_part(free, hinted)) == [True, False, True]:
        parts = {f.name for part in ("user", "time") for f in find_event_parts(free, part)}
        free = [f for f in free if f.name not in {*parts, *hinted.values()}]
        if ids := _unnamed_ids(free, "item")[:MOST_NAMED]:
            more = f"; or name {', '.join(ids[1:])}" if ids[1:] else ""
            notes.append(
                "there are users and times, but no column is named like an item: --task next_item "
                f"--item {ids[0]} proposes to predict the next {ids[0]} from each user's history"
                f"{more}"
            )
    elif all(has[:2]):
        notes.append(
            "there are users and items, but no column looks like a time: --task next_item --time "
            "COLUMN proposes to predict the next item from each user's history, in the order of "
            "COLUMN"
        )
    return events


def _has_part(columns: Sequence[ColumnStatistics], named: Mapping[str, str | None]) -> list[bool]:
    """Return whether there is a user, an item and a time."""
    parts = ("user", "item", "time")
    return [bool(named[part]) or bool(find_event_parts(columns, part)) for part in parts]
