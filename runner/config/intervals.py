"""Intervals: every `100` updates, `5000ex` examples, `10ep` epochs or `30min` of work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from runner.config_value import number_hint
from runner.errors import ConfigError

Unit = Literal["updates", "examples", "epochs", "seconds"]
_UNITS: dict[str, tuple[Unit, int]] = {  # by suffix of the number, with its multiplier
    "": ("updates", 1),
    "ex": ("examples", 1),
    "ep": ("epochs", 1),
    "s": ("seconds", 1),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
}
_FIELDS = {"updates": "step", "examples": "examples", "epochs": "epoch", "seconds": "active_s"}


@dataclass(frozen=True)
class Interval:
    """Every `count` of `unit`."""

    unit: Unit
    count: int

    @property
    def text(self) -> str:
        return f"{self.count:,} {self.unit if self.count != 1 else self.unit[:-1]}"


@dataclass(frozen=True)
class Progress:
    """How far a run has come after an update."""

    step: int = 0
    examples: int = 0
    epoch: int = 0  # completed ones
    active_s: float = 0.0  # seconds of work, including those before a restart


def parse_interval(
    value: int | str | None,
    *,
    key: str,
    allow_time: bool = False,
    why_no_time: str = "",
    allow_null: bool = True,
) -> Interval | None:
    """Return the interval in a configuration; null means never.

    Args:
        allow_time: whether a time may be given. Only saving and logging may depend on the clock,
            since the clock must not affect results.
        why_no_time: the reason for this key, if it differs.
        allow_null: whether the key accepts null, so that a message may suggest it.

    Raises:
        ConfigError: if the value is not an interval, or a time where none is allowed.
    """
    if value is None:
        return None
    match = re.fullmatch(r"(\d+) ?([a-z]*)", str(value)) if not isinstance(value, bool) else None
    if match is None or match[2] not in _UNITS:
        ways = ["a number of updates", "'5000ex'", "'2ep'", *["'30min'"] * allow_time]
        last = "null for never" if allow_null else ways.pop()
        last += number_hint(value)
        raise ConfigError(f"{key}={value}: not an interval; write {', '.join(ways)}, or {last}")
    unit, factor = _UNITS[match[2]]
    count = int(match[1]) * factor
    if unit == "seconds" and not allow_time:
        why = why_no_time or "this key changes the result, which must not depend on speed"
        raise ConfigError(
            f"{key}={value}: must not be a time: {why}; write updates, '5000ex' or '2ep'"
        )
    if count < 1:
        never = "; null means never" * allow_null
        raise ConfigError(f"{key}={value}: an interval is at least 1{never}")
    return Interval(unit, count)


def is_due(interval: Interval | None, before: Progress, after: Progress) -> bool:
    """Return whether the update from `before` to `after` reached or passed a multiple."""
    if interval is None:
        return False
    field = _FIELDS[interval.unit]
    start, end = getattr(before, field), getattr(after, field)
    return int(end // interval.count) > int(start // interval.count)
