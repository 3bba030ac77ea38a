"""Reads a schedule's settings: numbers, and lengths in updates, fractions of the run or epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError, nearest_hint


@dataclass(frozen=True)
class ScheduleReader:
    """The settings of one schedule, with the run's lengths where they are known.

    A length is whole updates; a number below 1 is that fraction of the run; "2ep" is two epochs.
    """

    settings: Mapping[str, Any]
    where: str
    total_steps: int | None
    steps_per_epoch: int | None
    check_only: bool = False  # only names and ranges: lengths of the run are not known yet

    def error(self, key: str, rule: str) -> ConfigError:
        return ConfigError(f"{self.where}.{key}={self.settings.get(key)!r}: {rule}")

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above: bool = False,
    ) -> float:
        value = self.settings.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self.error(key, "must be a number")
        if not (low < value if above else low <= value) or value > high:
            upper = "" if high == math.inf else f" and at most {high:g}"
            raise self.error(key, f"must be {'above' if above else 'at least'} {low:g}{upper}")
        return float(value)

    def length(self, key: str, default: float | None = None, *, low: int = 1) -> int:
        value = self.settings.get(key)
        return self.to_updates(key, default if value is None else value, low=low)

    def to_updates(self, key: str, value: Any, *, low: int) -> int:
        """Updates from a count, a fraction of the run, or epochs such as "2ep"."""
        if isinstance(value, str) and value.endswith("ep") and _is_number(value[:-2]):
            if self.steps_per_epoch is None:
                if self.check_only:
                    return low
                raise self.error(key, "the length of an epoch is not known; give updates")
            count = round(float(value[:-2]) * self.steps_per_epoch)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self.error(key, 'must be updates, a fraction of the run below 1, or "2ep"')
        elif 0 < value < 1:
            count = round(value * self.require_total_steps()) if not self.check_only else low
        elif value != int(value):
            raise self.error(key, "must be whole updates, or a fraction of the run below 1")
        else:
            count = int(value)
        if count < low:
            raise self.error(key, f"must be at least {low} update{'s' * (low > 1)}, got {count}")
        return count

    def require_total_steps(self) -> int:
        if self.total_steps is None:
            kind = self.settings["kind"]
            raise ConfigError(
                f"{self.where}.kind={kind} as set needs the length of the run: set "
                "trainer.max_steps, or use a schedule in updates such as constant"
            )
        return self.total_steps

    def choice(self, key: str, default: str, known: Sequence[str]) -> str:
        value = self.settings.get(key, default)
        if value not in known:
            raise self.error(
                key, f"must be one of {', '.join(known)}{nearest_hint(str(value), known)}"
            )
        return value

    def items(self, key: str) -> list[Any]:
        value = self.settings.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(key, "must be a list")
        return list(value)


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
