"""Parses a schedule's settings: numbers, and lengths as updates, fractions or epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.config_key import Key
from runner.config_value import find_problem, number_hint
from runner.optim.setting_checks import FROM_ZERO


@dataclass(frozen=True)
class ScheduleReader:
    """The settings of one schedule, with the lengths of the run if known.

    A length is a number of updates, a number below 1 is that fraction of the run, and "2ep" means
    two epochs.
    """

    settings: Mapping[str, Any]
    where: str
    total_steps: int | None
    steps_per_epoch: int | None
    check_only: bool = False  # only names and ranges: the run's lengths are not known yet
    problems: list[str] = field(default_factory=list)  # messages; a value may stand for a wrong one

    def refuse(self, key: str, rule: str) -> None:
        """Record that a setting breaks a rule."""
        self.problems.append(f"{self.where}.{key}={self.settings.get(key)!r}: {rule}")

    def number(self, key: str, default: float, annotated: Any = FROM_ZERO) -> float:
        """Return a setting that is a number of a type, which includes its range."""
        return float(self._checked(key, default, annotated))

    def _checked(self, key: str, default: Any, annotated: Any) -> Any:
        value = self.settings.get(key, default)
        problem = find_problem(f"{self.where}.{key}", value, annotated)
        if problem is None:
            return value
        self.problems.append(problem)
        return default

    def length(self, key: str, default: float | None = None, *, low: int = 1) -> int:
        """Return a setting that is a length, in updates; null means the default."""
        value = self.settings.get(key)
        return self.to_updates(key, default if value is None else value, low=low)

    def to_updates(self, key: str, value: Any, *, low: int) -> int:
        """Convert a count, a fraction of the run, or epochs such as "2ep", to updates.

        A value that is not a length of at least `low`, or needs an unknown length of the run, is
        refused and replaced by `low`.
        """
        if isinstance(value, str) and value.endswith("ep") and _is_number(value[:-2]):
            if self.steps_per_epoch is None:
                if not self.check_only:
                    self.refuse(key, "the length of an epoch is not known; give updates")
                return low
            count = round(float(value[:-2]) * self.steps_per_epoch)
        elif isinstance(value, bool) or not _is_length(value):
            near = number_hint(value)
            self.refuse(key, f'must be updates, a fraction of the run below 1, or "2ep"{near}')
            return low
        elif 0 < value < 1:
            if self.check_only or not self.has_total_steps():
                return low
            count = round(value * (self.total_steps or 0))
        elif value != int(value):
            self.refuse(key, "must be whole updates, or a fraction of the run below 1")
            return low
        else:
            count = int(value)
        if count < low:
            self.refuse(key, f"must be at least {low} update{'s' * (low > 1)}, got {count}")
        return max(count, low)

    def has_total_steps(self) -> bool:
        """Return whether the number of updates is known; record a problem if not."""
        if self.total_steps is None:
            kind = self.settings.get("kind")
            self.problems.append(
                f"{self.where}.kind={kind}: needs the length of the run with these settings: set "
                "trainer.max_steps, or use a schedule in updates such as constant"
            )
        return self.total_steps is not None

    def choice(self, key: str, default: str, known: Iterable[str]) -> str:
        """Return a setting that is one of the known words."""
        return str(self._checked(key, default, Annotated[str, Key(choices=tuple(known))]))

    def items(self, key: str) -> list[Any] | None:
        """Return a setting that is a list; None if it is not a list and was refused."""
        value = self.settings.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            self.refuse(key, "must be a list")
            return None
        return list(value)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**53  # NaN fails both comparisons


def _is_number(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False
