"""Learning-rate schedules: pure functions of the update number. No torch, no state, nothing saved.

A schedule gives the factor of the full rate for update k, counted from 1. With W updates of warm-up
and T in all:

    k <= W:  k / W                       so the first update never has rate 0, and update W is full
    k >  W:  shape(i, n)                 i = k - 1 - W updates done since, n = T - W in all

Shapes are in `shapes.py`. Those over the run reach `final` at i = n, that is after update T, so the
last update still moves. Past T (an endless run) the factor stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runner.errors import ConfigError, nearest_hint
from runner.optim.lr_lengths import ScheduleReader
from runner.optim.lr_shapes import SCHEDULE_KINDS

LRFactor = Callable[[int], float]


def build_schedule(
    settings: Mapping[str, Any],
    total_steps: int | None,
    *,
    steps_per_epoch: int | None = None,
    where: str = "scheduler",
) -> LRFactor:
    """The factor of the full rate as a function of the update number, from 1.

    Args: settings: `kind` and its own keys. total_steps: updates of the run; None if endless.
    Raises: ConfigError below `where`, also when a schedule needs a length that is not known.
    """
    kind = _check_keys(settings, where)
    return _factor(kind, ScheduleReader(settings, where, total_steps, steps_per_epoch))


def check_schedule(settings: Mapping[str, Any], *, where: str = "scheduler") -> None:
    """Names, types and ranges, before the run's length is known. Raises: ConfigError."""
    kind = _check_keys(settings, where)
    _factor(kind, ScheduleReader(settings, where, None, None, check_only=True))


def _check_keys(settings: Mapping[str, Any], where: str) -> str:
    kind = settings.get("kind")
    if kind not in SCHEDULE_KINDS:
        raise ConfigError(
            f"{where}.kind={kind!r} is no schedule{nearest_hint(str(kind), SCHEDULE_KINDS)}; "
            f"known: {', '.join(SCHEDULE_KINDS)}"
        )
    known = ("kind", "warmup", *SCHEDULE_KINDS[kind].keys)
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"{where}.{key} is no setting of {kind}{nearest_hint(key, known)}; "
                f"known: {', '.join(known)}"
            )
    return kind


def _factor(kind: str, read: ScheduleReader) -> LRFactor:
    warmup = read.length("warmup", 0, low=0)
    shape = SCHEDULE_KINDS[kind].build(read, warmup)
    total = read.total_steps
    if total is None and SCHEDULE_KINDS[kind].needs_total_steps and not read.check_only:
        read.require_total_steps()  # raises, and says so
    if total is not None and warmup > total:
        raise read.error("warmup", f"is longer than the run of {total} updates")
    rest = None if total is None else total - warmup

    def factor(k: int) -> float:
        assert k >= 1, "updates are counted from 1"
        if k <= warmup:
            return k / warmup
        done = k - 1 - warmup
        return shape(done if rest is None else min(done, rest), rest)

    return factor
