"""Settings for allocating and freeing rows of a growing table. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from runner.config_key import Key
from runner.errors import ConfigError, raise_combined, unknown_keys

NO_ID = -(2**63)  # a missing value among raw ids
_RANGES = {
    "by": Key(choices=("lru", "lfu")),
    "every": Key(ge=1, lt=2**31),
    "share": Key(gt=0, lt=1),
}


@dataclass(frozen=True)
class Eviction:
    """When rows are freed, and of which ids.

    Args:
        by: lru: ids that were seen longest ago; lfu: ids with the fewest sightings, whose counts
            are halved after every `every` updates, so that old ones fade.
        every: updates from one eviction to the next.
        share: of the rows, to be free after an eviction.
    """

    by: str
    every: int
    share: float = 0.1


@dataclass(frozen=True)
class Growth:
    """The rules of one growing table.

    Args:
        min_count: sightings after which an id gets its own row.
        evict: None: rows are never freed, and ids new to a full table share a row.
    """

    min_count: int = 1
    evict: Eviction | None = None


def parse_eviction(value: Any, where: str) -> Eviction | None:
    """Parse `evict: {by: lru, every: 1000, share: 0.1}`.

    Args:
        where: its dotted key, for messages.

    Raises:
        ConfigError: naming every key that is wrong, its value and the rule.
    """
    if value is None or isinstance(value, Eviction):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}={value!r}: expected {{by: lru, every: UPDATES, share: 0.1}}")
    raise_combined(_eviction_problems(value, where))
    return Eviction(**value)


def _eviction_problems(value: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from unknown_keys(value, [f.name for f in fields(Eviction)], where)
    for key in ("by", "every"):
        if key not in value:
            yield f"{where}.{key} is not set"
    kinds = {"by": (str, "lru or lfu"), "every": (int, "a whole number"), "share": (float, "")}
    for key, (kind, expected) in kinds.items():
        if key not in value:
            continue
        number = float(value[key]) if key == "share" and type(value[key]) is int else value[key]
        if type(number) is not kind:
            yield f"{where}.{key}={number!r}: expected {expected or 'a number'}"
        elif problem := _RANGES[key].find_problem(f"{where}.{key}", number):
            yield problem
