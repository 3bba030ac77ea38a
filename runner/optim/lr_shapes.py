"""Shapes of learning-rate schedules after warm-up: factors of the full rate.

i is the number of updates done since warm-up, n that of all updates after warm-up (None if the run
is endless). Every shape but one_cycle is 1 at i = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from runner.config_key import Key
from runner.optim.lr_lengths import ScheduleReader

ScheduleShape = Callable[[int, int | None], float]
_ABOVE_ZERO = Annotated[float, Key(gt=0)]
_FROM_ONE = Annotated[float, Key(ge=1)]
_SHARE = Annotated[float, Key(gt=0, le=1)]


@dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule: the function that builds its shape, and the keys of its settings."""

    build: Callable[[ScheduleReader, int], ScheduleShape]
    keys: tuple[str, ...]
    lengths: tuple[str, ...] = ()  # those keys that `ScheduleReader.to_updates` reads
    needs_total_steps: bool = False  # with any settings


def _decay_to(final: float, share: float) -> float:
    """Interpolate between 1 (share = 1) and `final` (share = 0)."""
    return final + (1 - final) * share


def _progress(done: int, length: int | None) -> float:
    assert length is not None
    return done / length if length else 1.0


def _constant(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Stay at 1."""
    return lambda i, n: 1.0


def _linear(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow a straight line to `final`."""
    final = reader.number("final", 0.0)
    return lambda i, n: _decay_to(final, 1 - _progress(i, n))


def _cosine(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow half a cosine to `final` (arXiv:1608.03983)."""
    final = reader.number("final", 0.0)
    return lambda i, n: _decay_to(final, _half_cosine(_progress(i, n)))


def _half_cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


def _polynomial(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow (1 - i/n)^power, down to `final`."""
    final, power = reader.number("final", 0.0), reader.number("power", 2.0, _ABOVE_ZERO)
    return lambda i, n: _decay_to(final, (1 - _progress(i, n)) ** power)


def _step(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Multiply by gamma after every `every` updates."""
    every, gamma = reader.length("every"), reader.number("gamma", 0.1)
    return lambda i, n: gamma ** (i // every)


def _exponential(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow gamma^(i/every), but stay at `final` or above."""
    every, gamma = reader.length("every"), reader.number("gamma", 0.9, _ABOVE_ZERO)
    final = reader.number("final", 0.0)
    return lambda i, n: max(final, gamma ** (i / every))


def _piecewise(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Stay at 1, then at factors[j] from update at[j] of the run on, counting warm-up."""
    lengths, factors = reader.items("at"), reader.items("factors")
    at = [reader.to_updates("at", value, low=1) for value in lengths or []]
    if not reader.check_only and sorted(set(at)) != at:
        reader.refuse("at", "must rise from one length to the next")
    if lengths is not None and factors is not None and len(factors) != len(at):
        reader.refuse("factors", f"must be as many as `at`, {len(at)}")
    factors = factors or []
    if not all(isinstance(f, int | float) and 0 <= f < math.inf for f in factors):
        reader.refuse("factors", "must be finite numbers of at least 0")
    return lambda i, n: float(([1.0, *factors])[sum(i + warmup >= done for done in at)])


def _cosine_restarts(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow half cosines that start again after each period (arXiv:1608.03983).

    Each period is `growth` times as long as the one before, and its peak `decay` times as high.
    """
    period = reader.length("period")
    growth = reader.number("growth", 1.0, _FROM_ONE)
    final = reader.number("final", 0.0)
    decay = reader.number("decay", 1.0, _SHARE)

    def shape(i: int, n: int | None) -> float:
        cycle, start, length = _cycle(i, period, growth)
        return _decay_to(final, _half_cosine((i - start) / length)) * decay**cycle

    return shape


def _cycle(i: int, period: int, growth: float) -> tuple[int, float, float]:
    """Return number, start and length of the cycle of i; lengths are period * growth^number."""
    if growth == 1:
        return i // period, i // period * period, period
    cycle, start, length = 0, 0.0, float(period)
    while i >= start + length:
        cycle, start, length = cycle + 1, start + length, length * growth
    return cycle, start, length


def _one_cycle(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Rise from `start` to 1 at `rise` of the run, then fall to `final`, by half cosines.

    Source: arXiv:1708.07120.
    """
    if reader.settings.get("warmup"):
        reader.refuse("warmup", "one_cycle rises by itself; set `rise` and leave this at 0")
    rise = reader.number("rise", 0.3, _SHARE)
    start, final = reader.number("start", 0.04), reader.number("final", 4e-6)

    def shape(i: int, n: int | None) -> float:
        part = _progress(i, n)
        if part < rise:
            return 1 + (start - 1) * _half_cosine(part / rise)
        return _decay_to(final, _half_cosine((part - rise) / (1 - rise) if rise < 1 else 1.0))

    return shape


def _inverse_sqrt(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow sqrt(s / (s + i)), where s is the warm-up unless it is set (arXiv:1706.03762)."""
    scale = reader.length("scale", max(warmup, 1))
    return lambda i, n: math.sqrt(scale / (scale + i))


def _wsd(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Stay at 1, then fall to `final` over the last `decay` updates (arXiv:2404.06395)."""
    decay = reader.length("decay", 0.2, low=0)
    final = reader.number("final", 0.0)
    curve = _CURVES[reader.choice("curve", "linear", _CURVES)]

    def shape(i: int, n: int | None) -> float:
        assert n is not None
        length = min(decay, n)
        done = i - (n - length)
        return 1.0 if done <= 0 else _decay_to(final, curve(done / length))

    return shape


_CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda part: 1 - part,
    "cosine": _half_cosine,
    "sqrt": lambda part: 1 - math.sqrt(part),
}


def _cyclical(reader: ScheduleReader, warmup: int) -> ScheduleShape:
    """Follow triangles from 1 to `low` and back (arXiv:1506.01186).

    Each triangle is `gamma` times as high as the one before.
    """
    period = reader.length("period", low=2)
    low = reader.number("low", 0.1, Annotated[float, Key(ge=0, le=1)])
    gamma = reader.number("gamma", 1.0, _SHARE)

    def shape(i: int, n: int | None) -> float:
        high_left = abs(2 * (i % period) / period - 1)  # 1 at the ends of a period, 0 in its middle
        return low + (1 - low) * high_left * gamma ** (i // period)

    return shape


SCHEDULE_KINDS: dict[str, ScheduleKind] = {
    "constant": ScheduleKind(_constant, ()),
    "linear": ScheduleKind(_linear, ("final",), needs_total_steps=True),
    "cosine": ScheduleKind(_cosine, ("final",), needs_total_steps=True),
    "polynomial": ScheduleKind(_polynomial, ("final", "power"), needs_total_steps=True),
    "step": ScheduleKind(_step, ("every", "gamma"), lengths=("every",)),
    "exponential": ScheduleKind(_exponential, ("every", "gamma", "final"), lengths=("every",)),
    "piecewise": ScheduleKind(_piecewise, ("at", "factors"), lengths=("at",)),
    "cosine_restarts": ScheduleKind(
        _cosine_restarts, ("period", "growth", "final", "decay"), lengths=("period",)
    ),
    "one_cycle": ScheduleKind(_one_cycle, ("rise", "start", "final"), needs_total_steps=True),
    "inverse_sqrt": ScheduleKind(_inverse_sqrt, ("scale",), lengths=("scale",)),
    "wsd": ScheduleKind(
        _wsd, ("decay", "final", "curve"), lengths=("decay",), needs_total_steps=True
    ),
    "cyclical": ScheduleKind(_cyclical, ("period", "low", "gamma"), lengths=("period",)),
}
