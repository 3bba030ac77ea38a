"""Checks of settings that the settings of this room share. This module imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.errors import ConfigError, unknown_choice, unknown_setting


def check_choice(value: Any, key: str, known: Iterable[str]) -> str:
    """Return a value that must be one of the known ones.

    Raises:
        ConfigError: if it is not, with the nearest known one.
    """
    known = list(known)
    if value not in known:
        raise ConfigError(unknown_choice(key, value, known))
    return str(value)


def check_keys(settings: Iterable[str], known: Sequence[str], key: str, owner: str) -> None:
    """Refuse settings whose names are not known.

    Args:
        settings: the names that were given.
        known: all names that `owner` has.
        key: the dotted key of the settings.
        owner: what the settings belong to, for the message.

    Raises:
        ConfigError: for the first unknown name, with the nearest known one.
    """
    for name in settings:
        if name not in known:
            raise ConfigError(unknown_setting(key, str(name), owner, known))


def check_number(
    value: Any,
    key: str,
    *,
    low: float = 0.0,
    high: float = math.inf,
    above_low: bool = False,
    below_high: bool = False,
) -> float:
    """Return a finite number from `low` to `high`, which may be excluded.

    Raises:
        ConfigError: if the value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{key}={value!r}: must be a finite number")
    if (
        value < low
        or value > high
        or (above_low and value == low)
        or (below_high and value == high)
    ):
        bounds = f"{'above' if above_low else 'at least'} {low:g}"
        if high < math.inf:
            bounds += f" and {'below' if below_high else 'at most'} {high:g}"
        raise ConfigError(f"{key}={value!r}: must be {bounds}")
    return float(value)


def check_pattern_entry(
    entry: Any, known: Sequence[str], key: str, owner: str, *, example: str
) -> str:
    """Check an entry of a list of settings for parameters, and return its pattern.

    Args:
        entry: what the list holds; a mapping with a `pattern` is right.
        known: all keys that an entry may have.
        key: the dotted key of the entry.
        owner: what the entry describes, for the message.
        example: keys of an entry as a user writes them, for the message.

    Raises:
        ConfigError: if the entry is not a mapping, has an unknown key, or has no pattern.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key}={entry!r}: write {{{example}}}")
    check_keys(entry, known, key, owner)
    pattern = entry.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"{key}.pattern: is missing; give a regular expression for names")
    return pattern
