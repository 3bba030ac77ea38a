"""Learning-rate schedules as pure functions of the update number. No torch, no state to save.

A schedule gives the factor of the full rate for update k, counted from 1. With W updates of warm-up
and T updates in all:

    k <= W:  k / W                     so the first update never has rate 0, and update W is full
    k >  W:  shape(i, n)               with i = k - 1 - W updates done since, of n = T - W

The shapes are in `lr_shapes.py`. A shape that spans the run reaches `final` at i = n, which is
after update T, so the last update still has an effect. The factor stays the same after T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from runner.config_key import Key
from runner.config_value import find_problem
from runner.errors import ConfigError, raise_combined
from runner.optim.lr_lengths import ScheduleReader
from runner.optim.lr_shapes import SCHEDULE_KINDS
from runner.optim.setting_checks import find_unknown_keys

_KIND = Annotated[str, Key(choices=tuple(SCHEDULE_KINDS))]
LRFactor = Callable[[int], float]
_LARGEST_FACTOR = 1e30  # a larger rate exceeds 32-bit floats


def build_schedule(
    settings: Mapping[str, Any],
    total_steps: int | None,
    *,
    steps_per_epoch: int | None = None,
    where: str = "scheduler",
) -> LRFactor:
    """Build the factor of the full rate as a function of the update number, counted from 1.

    Args:
        settings: `kind` and its own keys.
        total_steps: updates of the run; None if it is endless.
        steps_per_epoch: updates of an epoch; None if unknown.
        where: the dotted key of the settings, for messages.

    Raises:
        ConfigError: for a wrong setting, or if the schedule needs an unknown length.
    """
    reader = ScheduleReader(settings, where, total_steps, steps_per_epoch)
    factor = _read(reader)
    raise_combined(reader.problems)
    assert factor is not None
    if total_steps is not None and not _is_within_bounds(factor, total_steps):
        raise ConfigError(
            f"{where}: at update {total_steps:,} the rate is over {_LARGEST_FACTOR:.0e} times the "
            "full one; a gamma, final or factor above 1 makes it grow"
        )
    return factor


def _is_within_bounds(factor: LRFactor, total_steps: int) -> bool:
    try:
        return factor(total_steps) <= _LARGEST_FACTOR
    except OverflowError:
        return False


def check_schedule(settings: Mapping[str, Any]) -> None:
    """Check names, types and ranges before the length of the run is known.

    A user-defined schedule checks its settings when it is built.

    Raises:
        ConfigError: with every mistake.
    """
    raise_combined(find_schedule_problems(settings, "scheduler"))


def find_schedule_problems(settings: Mapping[str, Any], where: str) -> list[str]:
    """Return a message for every mistake in a schedule, see `check_schedule`."""
    reader = ScheduleReader(settings, where, None, None, check_only=True)
    if "_target_" not in settings:
        _read(reader)
    return reader.problems


def _read(reader: ScheduleReader) -> LRFactor | None:
    """Return the factor, None if the kind is unknown; the reader collects the problems."""
    kind: Any = reader.settings.get("kind")
    warmup = reader.length("warmup", 0, low=0)
    if problem := find_problem(f"{reader.where}.kind", kind, _KIND):
        reader.problems.append(problem)
        return None
    known = ("kind", "warmup", *SCHEDULE_KINDS[kind].keys)
    reader.problems.extend(find_unknown_keys(reader.settings, known, reader.where, kind))
    shape = SCHEDULE_KINDS[kind].build(reader, warmup)
    total = reader.total_steps
    if SCHEDULE_KINDS[kind].needs_total_steps and not reader.check_only:
        reader.has_total_steps()  # records the problem
    if total is not None and warmup > total:
        reader.refuse("warmup", f"is longer than the run of {total} updates")
    rest = None if total is None else total - warmup

    def factor(k: int) -> float:
        assert k >= 1, "updates are counted from 1"
        if k <= warmup:
            return k / warmup
        done = k - 1 - warmup
        return shape(done if rest is None else min(done, rest), rest)

    return factor
