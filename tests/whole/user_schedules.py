"""Learning-rate schedules as a user would write them, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runner import schedule_option


@schedule_option
def staircase(*, total_steps: int, drop: float = 0.5) -> Callable[[int], float]:
    """Falls by `drop` at every quarter of the run."""
    return lambda update: drop ** (4 * (update - 1) // total_steps)


def unmarked(*, total_steps: int) -> Callable[[int], float]:
    return staircase(total_steps=total_steps)


class Shrinking:
    """Each factor is a share of the one before: it has to know that one."""

    def __init__(self, *, rate: float) -> None:
        self.rate, self.factor = rate, 1.0

    def __call__(self, update: int) -> float:
        self.factor *= self.rate
        return self.factor

    def state(self) -> dict[str, Any]:
        return {"factor": self.factor}

    def load_state(self, saved: dict[str, Any]) -> None:
        self.factor = saved["factor"]


class Half(Shrinking):
    """Lost a part of its state."""

    load_state = None  # type: ignore[assignment]


class Constant:
    """Gives whatever it is told to."""

    def __init__(self, *, value: Any, until: int = 0) -> None:
        self.value, self.until = value, until

    def __call__(self, update: int) -> Any:
        return 1.0 if update <= self.until else self.value
