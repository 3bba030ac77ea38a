"""`trainer.penalties`: entries with a pattern and the strengths of L1 and L2. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config_value import find_problem
from runner.errors import ConfigError, raise_combined
from runner.optim.setting_checks import FROM_ZERO, check_pattern_entry

_KEYS = ("pattern", "l1", "l2")


@dataclass(frozen=True)
class Penalty:
    """An entry of `trainer.penalties`. Several may apply to the same parameter."""

    pattern: str
    l1: float
    l2: float


def parse_penalties(node: Any) -> tuple[Penalty, ...]:
    """Check the entries of `trainer.penalties`.

    Raises:
        ConfigError: with the key, the rule and the nearest right name.
    """
    penalties = []
    for i, entry in enumerate(node or []):
        key = f"trainer.penalties[{i}]"
        example = "pattern: REGEX, l1: 0.0, l2: 0.0"
        pattern = check_pattern_entry(entry, _KEYS, key, "a penalty", example=example)
        values = {name: entry.get(name, 0.0) for name in ("l1", "l2")}
        raise_combined(
            filter(None, (find_problem(f"{key}.{n}", v, FROM_ZERO) for n, v in values.items()))
        )
        l1, l2 = map(float, values.values())
        if not (l1 or l2):
            raise ConfigError(f"{key}: neither l1 nor l2 is above 0; set one, such as l2: 1e-5")
        penalties.append(Penalty(pattern, l1, l2))
    return tuple(penalties)
