"""Learning-rate schedules of users, given by a `_target_` instead of a `kind`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runner.errors import ConfigError
from runner.optim.lr_schedule import LRFactor, build_schedule
from runner.training.builder.instantiate import instantiate
from runner.training.builder.part_kinds import KINDS
from runner.training.callbacks.callback_set import check_json_state, has_state


class OwnSchedule:
    """Wraps a user's schedule: checks its factors, and saves its state if it has one.

    Args:
        key: of its node in the configuration.
        schedule: called once with the number of each update, from 1.

    Raises:
        ConfigError: for an object that cannot be called, has only one of the two methods of a
            state, or has a state that JSON cannot hold.
    """

    def __init__(self, key: str, schedule: Callable[[int], float]) -> None:
        self._where = f"{key} ({type(schedule).__name__})"
        self._schedule: Any = schedule
        if not callable(schedule):
            raise ConfigError(f"{self._where}: is no schedule: it has no __call__(step)")
        self._has_state = has_state(self._where, schedule)
        self.state()

    def __call__(self, step: int) -> float:  # not `update`, since its name marks a schedule
        """Return the factor of the full rate for an update.

        Raises:
            ConfigError: if the schedule returns no number of at least 0.
        """
        factor = self._schedule(step)
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise ConfigError(f"{self._where}: gave {factor!r} for update {step}, not a number")
        if not 0 <= factor < math.inf:
            raise ConfigError(
                f"{self._where}: gave {factor!r} for update {step}; a factor of the full rate "
                "is a number from 0"
            )
        return float(factor)

    def state(self) -> dict[str, Any] | None:
        """Return the state for checkpoints; None for a schedule without one.

        Raises:
            ConfigError: if that is not a dict of JSON values.
        """
        if not self._has_state:
            return None
        return dict(check_json_state(self._where, self._schedule.state()))

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if self._has_state:
            self._schedule.load_state(dict(saved))


def build_any_schedule(
    node: Mapping[str, Any],
    *,
    where: str = "scheduler",
    total_steps: int | None,
    steps_per_epoch: int | None,
    allowed: Sequence[str],
) -> LRFactor:
    """Build a schedule of this package by its `kind`, or a user's by its `_target_`.

    A user's gets `total_steps` and `steps_per_epoch` if it has such arguments. It is tried on the
    first update, with an object that is discarded.

    Args:
        total_steps: updates of the run; None if it is endless.
        steps_per_epoch: updates of an epoch; None if that is not known.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        ConfigError: for a wrong setting, or a schedule that returns no factor.
    """
    if "_target_" not in node:
        return build_schedule(node, total_steps, steps_per_epoch=steps_per_epoch, where=where)
    lengths = {"total_steps": total_steps, "steps_per_epoch": steps_per_epoch}
    make = partial(
        instantiate, node, KINDS["scheduler"], key=where, allowed=allowed, offered=lengths
    )
    OwnSchedule(where, make())(1)
    return OwnSchedule(where, make())
