"""Reading a schedule's settings: numbers, and lengths as updates, fractions or epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError
from runner.optim.setting_checks import check_choice, check_number


@dataclass(frozen=True)
class ScheduleReader:
    """The settings of one schedule, with the lengths of the run where they are known.

    A length is a number of updates, a number below 1 is that fraction of the run, and "2ep" means
    two epochs.
    """

    settings: Mapping[str, Any]
    where: str
    total_steps: int | None
    steps_per_epoch: int | None
    check_only: bool = False  # names and ranges alone: the run's lengths are not known yet

    def error(self, key: str, rule: str) -> ConfigError:
        """Make the error for a setting that breaks a rule."""
        return ConfigError(f"{self.where}.{key}={self.settings.get(key)!r}: {rule}")

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above_low: bool = False,
    ) -> float:
        """Return a setting that is a number from `low` to `high`."""
        value = self.settings.get(key, default)
        return check_number(value, f"{self.where}.{key}", low=low, high=high, above_low=above_low)

    def length(self, key: str, default: float | None = None, *, low: int = 1) -> int:
        """Return a setting that is a length, in updates; null stands for the default."""
        value = self.settings.get(key)
        return self.to_updates(key, default if value is None else value, low=low)

    def to_updates(self, key: str, value: Any, *, low: int) -> int:
        """Convert a count, a fraction of the run, or epochs such as "2ep", to updates.

        Raises:
            ConfigError: if the value is not a length of at least `low`, or if it needs a length of
                the run that is not known.
        """
        if isinstance(value, str) and value.endswith("ep") and _is_number(value[:-2]):
            if self.steps_per_epoch is None:
                if self.check_only:
                    return low
                raise self.error(key, "the length of an epoch is not known; give updates")
            count = round(float(value[:-2]) * self.steps_per_epoch)
        elif isinstance(value, bool) or not _is_length(value):
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
        """Return the updates of the run.

        Raises:
            ConfigError: if the run is endless.
        """
        if self.total_steps is None:
            kind = self.settings["kind"]
            raise ConfigError(
                f"{self.where}.kind={kind}: needs the length of the run with these settings: set "
                "trainer.max_steps, or use a schedule in updates such as constant"
            )
        return self.total_steps

    def choice(self, key: str, default: str, known: Iterable[str]) -> str:
        """Return a setting that is one of the known words."""
        return check_choice(self.settings.get(key, default), f"{self.where}.{key}", known)

    def items(self, key: str) -> list[Any]:
        """Return a setting that is a list.

        Raises:
            ConfigError: if it is not a list.
        """
        value = self.settings.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(key, "must be a list")
        return list(value)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**53  # NaN fails both comparisons


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
