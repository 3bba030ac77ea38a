"""The key `interactions` of a schema, which declares a table of events: a user, an item, a time.

Rows made from such a table get histories. To the rest of the schema these are ordinary sequences,
so `expand_schema` adds the declarations that the key implies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import pyarrow as pa

from runner.config_key import Key
from runner.config_value import find_field_problems
from runner.data.columns.split_setting import parse_duration
from runner.data.columns.times import TIME_FORMS
from runner.errors import unknown_keys

INTERACTIONS = "interactions"
HISTORY = "history"  # the sequence of items; other sequences are called history_NAME
LABEL = "label"  # the label's name in a schema that declares none
TIME_GAP = "time_gap"
GAP_BUCKETS = 40  # powers of 2 of seconds: the last one begins at 17,000 years


@dataclass(frozen=True)
class Interactions:
    """What the columns of a table of events mean. The repr enters signatures and cache keys."""

    user: str  # columns
    item: str
    time: str
    time_unit: Annotated[str, Key(choices=TIME_FORMS)] = "seconds"  # the form of numbers in `time`
    rating: str | None = None  # column of numbers, such as ratings, clicks or shares watched
    positive: Annotated[float | None, Key()] = None  # the rating from which the user liked the item
    # whether events below `positive` are dropped, or become rows with label 0, in no history
    below: Annotated[str, Key(choices=("drop", "negative"))] = "drop"
    max_length: Annotated[int, Key(ge=1, lt=2**20)] = 50  # of a history, which keeps the newest
    min_history: Annotated[int, Key(ge=0)] = 1  # events before a row; a row with fewer is left out
    # every: a row for each event; windows: rows whose histories do not overlap, for models that
    # learn at every position of a sequence; last: a row for the last event of each user or session
    train_on: Annotated[str, Key(choices=("every", "windows", "last"))] = "every"
    # user, item -> the least number of events of each (the k-core)
    min_count: Annotated[Mapping[str, int], Key(ge=1)] = field(default_factory=dict)
    session_gap_s: float | None = None  # a pause after which a new history begins
    sequences: tuple[str, ...] = ()  # further columns of ids that histories contain for each event
    time_gap: bool = False  # whether histories have the time from each event to the row
    event: str | None = None  # column of the type of an event
    predict: tuple[str, ...] = ()  # types of which rows are made; histories have all types
    makes_label: bool = True  # whether the schema declares no label of its own
    # split -> rows with label 0 for each with label 1, with items that the user has never touched.
    # Not in the repr, which is part of signatures of older runs: `content_fields` adds it.
    negatives: Annotated[Mapping[str, int], Key(ge=0)] = field(default_factory=dict, repr=False)

    def content_fields(self) -> dict[str, Any]:
        """Return everything on which the rows depend."""
        negatives = {split: number for split, number in self.negatives.items() if number}
        return {"interactions": repr(self), **({"drawn": negatives} if negatives else {})}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that it needs besides features."""
        return tuple(c for c in (self.time, self.rating, self.event) if c)

    @property
    def sequence_names(self) -> tuple[str, ...]:
        """The names of the sequences made from histories."""
        more = (*self.sequences, *((TIME_GAP,) if self.time_gap else ()))
        return (HISTORY, *(f"{HISTORY}_{name}" for name in more))


_DERIVED = ("session_gap_s", "predict", "makes_label")
_KEYS = tuple(f.name for f in fields(Interactions) if f.name not in _DERIVED)
_NUMBERS_BY = {"min_count": ("user", "item"), "negatives": ("train", "validation", "test")}
_KNOWN = tuple("events" if name == "event" else name for name in (*_KEYS, "session_gap"))


def parse_interactions(
    schema: Mapping[str, Any], where: str, problems: list[str]
) -> Interactions | None:
    """Parse the key of a schema; None if it is missing or wrong.

    Args:
        where: the file's name, for messages.
        problems: receives a message for every key that is wrong.
    """
    setting, where = schema.get(INTERACTIONS), f"{where}.{INTERACTIONS}"
    if setting is None:
        return None
    if not isinstance(setting, Mapping):
        problems.append(
            f"{where}={setting!r}: expected {{user: COLUMN, item: COLUMN, time: COLUMN}}"
        )
        return None
    errors = list(unknown_keys(setting, _KNOWN, where))
    errors += [
        f"{where}.{k} is not set: a column" for k in ("user", "item", "time") if not setting.get(k)
    ]
    values = {k: v for k, v in setting.items() if k in _KEYS and v is not None}
    values |= _parse_events(setting.get("events"), f"{where}.events", errors)
    values |= _parse_session_gap(setting.get("session_gap"), f"{where}.session_gap", errors)
    errors += _wrong_values(values, where)
    if errors:
        problems += errors
        return None
    values["sequences"] = tuple(values.get("sequences", ()))
    parsed = Interactions(**values, makes_label=not schema.get("labels"))
    errors += find_field_problems(parsed, f"{where}.")
    errors += _contradictions(parsed, where)
    errors += _wrong_negatives(parsed, schema, f"{where}.negatives")
    problems += errors
    return None if errors else parsed


def expand_schema(
    schema: Mapping[str, Any], interactions: Interactions, where: str, problems: list[str]
) -> dict[str, Any]:
    """Return the schema of the resulting rows: with ids, histories, a label and a group.

    The user and the item have vocabularies unless `categorical` declares them, and so does each of
    `sequences` that is not a feature; otherwise it shares the table of the feature of its name.

    Args:
        problems: receives a message for a sequence that cannot be made.
    """
    declared = _as_mapping(schema.get("categorical"))
    ids = {
        name: dict(declared.get(name) or {"encode": "vocabulary"})
        for name in (interactions.user, interactions.item)
    }
    categorical = {**ids, **{k: v for k, v in declared.items() if k not in ids}}
    length = {"max_length": interactions.max_length}
    sequences: dict[str, Any] = {}
    for name in (interactions.item, *interactions.sequences):
        history = HISTORY if name == interactions.item else f"{HISTORY}_{name}"
        settings = categorical.get(name)
        if settings is None and name not in categorical:
            sequences[history] = {"encode": "vocabulary", **length}
            continue
        settings = dict(settings or {})
        if {"list", "separator", "weights", "cross", "pooling"} & set(settings):
            key = "item" if history == HISTORY else "sequences"
            problems.append(
                f"{where}.{INTERACTIONS}.{key}: {name} must have one id for each event, not a list"
            )
            continue
        table = settings.get("table") or name
        sequences[history] = {**settings, "column": history, "table": table, **length}
    if interactions.time_gap:
        sequences[f"{HISTORY}_{TIME_GAP}"] = {"num_rows": GAP_BUCKETS, **length}
    return {
        **{k: v for k, v in schema.items() if k != INTERACTIONS},
        "labels": schema.get("labels") or {LABEL: {}},
        "categorical": categorical,
        "sequences": {**_as_mapping(schema.get("sequences")), **sequences},
        "groups": schema.get("groups") or [interactions.user],
    }


def with_histories(schema: pa.Schema, interactions: Interactions) -> pa.Schema:
    """Add the histories made from events, which are not columns of the files."""
    types = [schema.field(n).type for n in (interactions.item, *interactions.sequences)]
    types += [pa.int64()] * interactions.time_gap
    typed = zip(interactions.sequence_names, types, strict=True)
    histories = {name: pa.field(name, pa.list_(type_)) for name, type_ in typed}
    return pa.schema(
        [*(field for field in schema if field.name not in histories), *histories.values()]
    )


def _as_mapping(declared: Any) -> dict[str, Any]:
    """Return a role as a mapping if it is a mapping or a list; others are refused elsewhere."""
    if isinstance(declared, Mapping):
        return dict(declared)
    return dict.fromkeys(declared) if isinstance(declared, list | tuple) else {}


def _parse_events(events: Any, where: str, problems: list[str]) -> dict[str, Any]:
    if events is None:
        return {}
    expected = "expected {column: NAME, predict: [TYPE, ...]}"
    if not isinstance(events, Mapping) or set(events) != {"column", "predict"}:
        problems.append(f"{where}={events!r}: {expected}")
        return {}
    types = events["predict"]
    types = [types] if isinstance(types, str) else types
    if not isinstance(events["column"], str) or not isinstance(types, Sequence) or not types:
        problems.append(f"{where}={dict(events)!r}: {expected}")
        return {}
    return {"event": events["column"], "predict": tuple(map(str, types))}


def _parse_session_gap(gap: Any, where: str, problems: list[str]) -> dict[str, float]:
    if gap is None:
        return {}
    if seconds := parse_duration(str(gap)):
        return {"session_gap_s": seconds}
    problems.append(f"{where}={gap!r}: expected a time such as 30min")
    return {}


def _wrong_values(values: Mapping[str, Any], where: str) -> Iterator[str]:
    texts = ("user", "item", "time", "time_unit", "rating", "below", "train_on")
    for name, value in values.items():
        if name in texts and not isinstance(value, str):
            yield f"{where}.{name}={value!r}: expected a text"
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if name in ("max_length", "min_history") and not is_whole:
            yield f"{where}.{name}={value!r}: expected a whole number"
        if name == "time_gap" and not isinstance(value, bool):
            yield f"{where}.{name}={value!r}: expected true or false"
        if name == "positive" and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield f"{where}.{name}={value!r}: expected a number"
        if name == "sequences" and not (
            isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        ):
            yield f"{where}.{name}={value!r}: expected a list of columns"
        if (known := _NUMBERS_BY.get(name)) is not None:
            if not isinstance(value, Mapping) or not all(type(n) is int for n in value.values()):
                expected = ", ".join(f"{key}: NUMBER" for key in known)
                yield f"{where}.{name}={value!r}: expected {{{expected}}}"
                continue
            yield from unknown_keys(value, known, f"{where}.{name}")


def _contradictions(parsed: Interactions, where: str) -> Iterator[str]:
    if (parsed.rating is None) != (parsed.positive is None):
        missing = "positive" if parsed.positive is None else "rating"
        yield f"{where}.{missing} is not set: rating and positive are set together or not at all"
    if parsed.below == "negative" and parsed.rating is None:
        yield (
            f"{where}.below=negative: needs rating and positive, which say which events are "
            "negative"
        )
    if parsed.train_on == "windows" and (parsed.predict or parsed.below == "negative"):
        yield (
            f"{where}.train_on=windows: trains on every event, so it cannot be used with "
            "events.predict or below: negative; write `train_on: every`"
        )
    columns = [parsed.user, parsed.item, parsed.time]
    if len(set(columns)) < len(columns):
        yield f"{where}: user, item and time must be different columns, not {', '.join(columns)}"
    if parsed.item in parsed.sequences or len(set(parsed.sequences)) < len(parsed.sequences):
        yield (
            f"{where}.sequences={list(parsed.sequences)}: must not name the item, nor a column "
            "twice"
        )


def _wrong_negatives(parsed: Interactions, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield why rows with label 0 cannot be made: other features would be of another item."""
    if not any(parsed.negatives.values()):
        return
    if not parsed.makes_label:
        yield f"{where}: makes the label, so the schema must declare no label of its own"
    for name in parsed.sequences:
        if name in _as_mapping(schema.get("categorical")):
            yield (
                f"{where}: {name} is in sequences and in categorical, and a drawn item would get "
                "the value of another item; take it out of categorical, or leave out negatives"
            )
