"""`trainer.penalties`: entries with a pattern and the strengths of L1 and L2. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError, nearest_hint

_KEYS = ("pattern", "l1", "l2")


@dataclass(frozen=True)
class Penalty:
    """An entry of `trainer.penalties`; several may hold for the same parameter."""

    pattern: str
    l1: float
    l2: float


def parse_penalties(node: Any, *, where: str = "trainer.penalties") -> tuple[Penalty, ...]:
    """Raises: ConfigError that names the key, the rule and the nearest right name."""
    found = []
    for i, entry in enumerate(node or []):
        key = f"{where}[{i}]"
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{key}={entry!r}: write {{pattern: REGEX, l1: 0.0, l2: 0.0}}")
        for name in entry:
            if name not in _KEYS:
                raise ConfigError(
                    f"{key}.{name}: is no key of a penalty{nearest_hint(name, _KEYS)}; known: "
                    f"{', '.join(_KEYS)}"
                )
        if not isinstance(entry.get("pattern"), str):
            raise ConfigError(f"{key}.pattern: is missing; a regular expression on parameter names")
        strengths = {}
        for name in ("l1", "l2"):
            value = entry.get(name, 0.0)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ConfigError(f"{key}.{name}={value!r}: a number from 0")
            strengths[name] = float(value)
        if not any(strengths.values()):
            raise ConfigError(f"{key}: has neither l1 nor l2 above 0")
        found.append(Penalty(entry["pattern"], **strengths))
    return tuple(found)
