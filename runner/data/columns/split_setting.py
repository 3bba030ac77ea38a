"""How a split of a table's rows is written: at random, by a column, by groups, or by time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.times import TIME_FORMS, parse_times
from runner.data.prepare.recipe import SPLITS
from runner.errors import ConfigError, nearest_hint, unknown_choice

SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# Appended to the seeds of draws: `default_rng(0)` alone would give the random numbers with which
# many a made-up table begins. Increase it when a random split draws other rows than before.
DRAWS = 2
EVENT_SPLITS = ("leave_out", "user")  # kinds that need events of users
LEAVE_ONE_OUT, LEAVE_K_OUT = "leave_one_out", "leave_k_out"
_FORMS = (
    "one of random: {train: 0.8, ...}, column: NAME with train: [...], group: NAME with "
    "train: 0.8, ..., time: NAME with test: LAST or DATE (and input: FORM); or, of "
    "interactions, leave_one_out, leave_k_out: NUMBER or user: {train: 0.8, ...}"
)


@dataclass(frozen=True)
class Split:
    """How the rows of `dataset.path` are split.

    The meaning of `of` depends on `kind`. random: a split's share of the rows. column: the values
    of the column. group: its share of the column's values, whose rows stay together. time: its
    share, or its length in seconds, counted from the end, or the second when it begins: the test
    split comes last, the validation split before it. user: its share of the users. leave_out: how
    many of the last events of each user. The repr is part of signatures.

    `input` is the form of the column's numbers or texts as times, see `times.parse_times`.
    """

    # random, column, group, time, user, leave_out, or whole: all rows belong to the train split
    kind: str
    of: Mapping[str, Any] = field(default_factory=lambda: {"train": 1.0})
    column: str | None = None
    input: str = ""  # one of TIME_FORMS; empty: seconds, or texts in ISO 8601

    def __repr__(self) -> str:
        form = f", input={self.input!r}" if self.input else ""  # absent in the reprs of older runs
        draws = f", draws={DRAWS}" if self.kind == "random" else ""
        return f"Split(kind={self.kind!r}, of={self.of!r}, column={self.column!r}{form}{draws})"

    @property
    def splits(self) -> tuple[str, ...]:
        has_rest = self.kind in ("time", "leave_out")  # the rest is the train split
        return tuple(s for s in SPLITS if self.of.get(s) or (s == "train" and has_rest))


def describe_split(split: Split) -> str:
    """Return a split roughly as it is written in YAML."""

    def describe(value: Any) -> str:
        if split.kind != "time":
            return str(value)
        kind, length = value
        if kind == "date":
            return f"{datetime.fromtimestamp(length, UTC):%Y-%m-%d %H:%M:%S}"
        return f"{length:g}{'s' if kind == 'seconds' else ''}"

    if split.kind == "leave_out":
        count = split.of["test"]
        return "split leave_one_out" if count == 1 else f"split leave_k_out: {count}"
    parts = [f"{name}: {describe(value)}" for name, value in split.of.items()]
    kind = f"{split.kind}: {split.column}" if split.column else split.kind
    return f"split {', '.join([kind, *parts])}"


def parse_split(setting: Mapping[str, Any] | str | None, key: str = "dataset.split") -> Split:
    """Parse a split as it is written in YAML.

    Args:
        key: where it is written, for messages.

    Raises:
        ConfigError: naming the key, the value and what is expected.
    """
    if setting is None:
        return Split("whole")
    if setting == LEAVE_ONE_OUT:
        return _leave_out(1, key)
    if not isinstance(setting, Mapping):
        hint = nearest_hint(str(setting), (LEAVE_ONE_OUT,))
        raise ConfigError(f"{key}={setting!r}: expected {_FORMS}{hint}")
    if LEAVE_K_OUT in setting and len(setting) == 1:
        return _leave_out(setting[LEAVE_K_OUT], f"{key}.{LEAVE_K_OUT}")
    if not setting:
        return Split("whole")
    kinds = [k for k in ("random", "user", "column", "group", "time") if k in setting]
    if len(kinds) != 1:
        raise ConfigError(f"{key}: expected {_FORMS}")
    kind = kinds[0]
    form = setting.get("input", "") if kind == "time" else ""
    if form and form not in TIME_FORMS:
        raise ConfigError(unknown_choice(f"{key}.input", form, TIME_FORMS))
    own_keys = (kind, "input") if kind == "time" else (kind,)
    has_column = kind in ("column", "group", "time")
    parts = {k: v for k, v in setting.items() if k not in own_keys} if has_column else setting[kind]
    if not isinstance(parts, Mapping):
        raise ConfigError(f"{key}.{kind}={parts!r}: expected split: share")
    more = [] if has_column else [k for k in setting if k != kind]
    for name in [*parts, *more]:
        if name not in SPLITS or name in more:
            raise ConfigError(f"{key}.{name}: no such split{nearest_hint(str(name), SPLITS)}")
    # an empty list and, except as a value of a column, 0 are no part
    empty: list[Any] = [None, [], (), *([0] if kind != "column" else [])]
    parts = {name: value for name, value in parts.items() if value not in empty}
    if kind in ("random", "user", "group"):
        where = key if has_column else f"{key}.{kind}"
        for name, share in parts.items():
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 <= share <= 1:
                raise ConfigError(f"{where}.{name}={share}: must be a share from 0 to 1")
        if abs(sum(map(float, parts.values())) - 1) > 1e-9:
            raise ConfigError(f"{where}: shares add up to {sum(parts.values()):g}, not to 1")
    elif kind == "time":
        parts = {name: _parse_length(value, f"{key}.{name}") for name, value in parts.items()}
        if "train" in parts or not parts:
            raise ConfigError(f"{key}: a split by time needs the lengths of validation and test")
        dates = [
            parts[name][1] for name in ("validation", "test") if parts.get(name, [""])[0] == "date"
        ]
        if len(dates) not in (0, len(parts)) or dates != sorted(set(dates)):
            raise ConfigError(
                f"{key}: if one split begins at a date, all do, validation before test"
            )
    else:
        parts = {
            n: [str(v) for v in (v if isinstance(v, Sequence) and not isinstance(v, str) else [v])]
            for n, v in parts.items()
        }
        _check_apart(parts, key)
    if has_column and (isinstance(setting[kind], bool) or not isinstance(setting[kind], str | int)):
        raise ConfigError(f"{key}.{kind}={setting[kind]!r}: expected the name of a column")
    if kind != "time" and "train" not in parts:
        raise ConfigError(f"{key}.train is not set: there would be no row to train on")
    return Split(kind, parts, str(setting[kind]) if has_column else None, form)


def _check_apart(values: Mapping[str, Sequence[str]], key: str) -> None:
    """Refuse to train on rows that another split evaluates, unless both are meant to be the same.

    Raises:
        ConfigError: naming the split, and its first value that is one of train.
    """
    train = values.get("train", ())
    for name, others in values.items():
        shared = [value for value in others if value in train]
        if shared and set(others) != set(train):
            raise ConfigError(
                f"{key}.{name}: {shared[0]} is a value of train, too: the model would be measured "
                "on rows it has learnt from; name each value once"
            )


def _leave_out(count: Any, key: str) -> Split:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{key}={count!r}: expected a number of events from 1 on")
    return Split("leave_out", {"validation": count, "test": count})


def with_spellings(values: Sequence[str]) -> list[str]:
    """Return texts, with the other spellings of true and false, which YAML does not distinguish."""
    spellings = list(values)
    for value in {"True", "False"} & {*values}:
        spellings += [value.lower(), value.upper()]
    return spellings


def parse_duration(text: str) -> float | None:
    """Return the seconds of a length such as 30min or 7d; None for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d|w)", text)
    return float(match[1]) * SECONDS_PER_UNIT[match[2]] if match else None


def _parse_length(value: Any, key: str) -> tuple[str, float]:
    """Return ('share', 0.1) for 0.1, ('seconds', 604800.0) for `7d`, or ('date', its second).

    Raises:
        ConfigError: if the value is none of these.
    """
    if isinstance(value, (int, float)) and 0 < value < 1:
        return "share", float(value)
    if re.match(r"\d{4}-\d\d-\d\d", str(value)):
        second = float(parse_times(pa.array([str(value)]))[0])
        if not np.isnan(second):
            return "date", second
    if (seconds := parse_duration(str(value))) is None:
        raise ConfigError(
            f"{key}={value!r}: expected a share such as 0.1, a time such as 7d, or a date "
            "such as 2024-05-01"
        )
    return "seconds", seconds
