"""Shapes of learning-rate schedules after warm-up: factors of the full rate.

i updates done since warm-up, n updates after warm-up in all (None where the run is endless).
All but one_cycle are 1 at i = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from runner.optim.lr_lengths import ScheduleReader

ScheduleShape = Callable[[int, int | None], float]


@dataclass(frozen=True)
class ScheduleKind:
    build: Callable[[ScheduleReader, int], ScheduleShape]
    keys: tuple[str, ...]
    needs_total_steps: bool = False  # needs the length of the run whatever its settings


def _toward(final: float, left: float) -> float:
    """From 1 (left = 1) to `final` (left = 0)."""
    return final + (1 - final) * left


def _part(done: int, length: int | None) -> float:
    assert length is not None
    return done / length if length else 1.0


def _constant(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """1 throughout."""
    return lambda i, n: 1.0


def _linear(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """A straight line to `final`."""
    final = read.number("final", 0.0)
    return lambda i, n: _toward(final, 1 - _part(i, n))


def _cosine(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """Half a cosine to `final` (arXiv:1608.03983)."""
    final = read.number("final", 0.0)
    return lambda i, n: _toward(final, _half_cosine(_part(i, n)))


def _half_cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


def _polynomial(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """(1 - i/n)^power, to `final`."""
    final, power = read.number("final", 0.0), read.number("power", 2.0, above=True)
    return lambda i, n: _toward(final, (1 - _part(i, n)) ** power)


def _step(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """gamma once more after every `every` updates."""
    every, gamma = read.length("every"), read.number("gamma", 0.1)
    return lambda i, n: gamma ** (i // every)


def _exponential(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """gamma^(i/every), not below `final`."""
    every, gamma = read.length("every"), read.number("gamma", 0.9, above=True)
    final = read.number("final", 0.0)
    return lambda i, n: max(final, gamma ** (i / every))


def _piecewise(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """factors[j] once at[j] updates of the run are done, warm-up included; 1 before."""
    at = [read.to_updates("at", value, low=1) for value in read.items("at")]
    factors = read.items("factors")
    if not read.check_only and sorted(set(at)) != at:
        raise read.error("at", "must rise")
    if len(factors) != len(at):
        raise read.error("factors", f"must be as many as `at`, {len(at)}")
    if not all(isinstance(f, int | float) and f >= 0 for f in factors):
        raise read.error("factors", "must be numbers of at least 0")
    # `at` counts updates of the run, warm-up included: factor j holds once at[j] are done
    return lambda i, n: float(([1.0, *factors])[sum(i + warmup >= done for done in at)])


def _cosine_restarts(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """Half cosines that start anew (arXiv:1608.03983): period, growth, decay of the peak."""
    period = read.length("period")
    growth = read.number("growth", 1.0, low=1.0)
    final, decay = read.number("final", 0.0), read.number("decay", 1.0, above=True, high=1.0)

    def shape(i: int, n: int | None) -> float:
        cycle, start, length = _cycle(i, period, growth)
        return _toward(final, _half_cosine((i - start) / length)) * decay**cycle

    return shape


def _cycle(i: int, period: int, growth: float) -> tuple[int, float, float]:
    """Number, start and length of the cycle that holds i; lengths are period * growth^number."""
    if growth == 1:
        return i // period, i // period * period, period
    cycle, start, length = 0, 0.0, float(period)
    while i >= start + length:
        cycle, start, length = cycle + 1, start + length, length * growth
    return cycle, start, length


def _one_cycle(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """Half cosines (arXiv:1708.07120): `start` up to 1 at `rise` of the run, down to `final`."""
    if read.settings.get("warmup"):
        raise read.error("warmup", "one_cycle rises by itself; set `rise` and leave this at 0")
    rise = read.number("rise", 0.3, above=True, high=1.0)
    start, final = read.number("start", 0.04), read.number("final", 4e-6)

    def shape(i: int, n: int | None) -> float:
        part = _part(i, n)
        if part < rise:
            return 1 + (start - 1) * _half_cosine(part / rise)
        return _toward(final, _half_cosine((part - rise) / (1 - rise) if rise < 1 else 1.0))

    return shape


def _inverse_sqrt(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """sqrt(s / (s + i)); s is the warm-up unless set (arXiv:1706.03762)."""
    scale = read.length("scale", max(warmup, 1))
    return lambda i, n: math.sqrt(scale / (scale + i))


def _wsd(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """1, then down to `final` over the last `decay` updates (arXiv:2404.06395)."""
    decay = read.length("decay", 0.2, low=0)
    final = read.number("final", 0.0)
    curve = _CURVES[read.choice("curve", "linear", tuple(_CURVES))]

    def shape(i: int, n: int | None) -> float:
        assert n is not None
        length = min(decay, n)
        done = i - (n - length)
        return 1.0 if done <= 0 else _toward(final, curve(done / length))

    return shape


_CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda part: 1 - part,
    "cosine": _half_cosine,
    "sqrt": lambda part: 1 - math.sqrt(part),
}


def _cyclical(read: ScheduleReader, warmup: int) -> ScheduleShape:
    """Triangles from 1 to `low` and back (arXiv:1506.01186), their height times gamma each."""
    period = read.length("period", low=2)
    low, gamma = read.number("low", 0.1, high=1.0), read.number("gamma", 1.0, above=True, high=1.0)

    def shape(i: int, n: int | None) -> float:
        high_left = abs(2 * (i % period) / period - 1)  # 1 at the ends of a period, 0 in its middle
        return low + (1 - low) * high_left * gamma ** (i // period)

    return shape


SCHEDULE_KINDS: dict[str, ScheduleKind] = {
    "constant": ScheduleKind(_constant, ()),
    "linear": ScheduleKind(_linear, ("final",), needs_total_steps=True),
    "cosine": ScheduleKind(_cosine, ("final",), needs_total_steps=True),
    "polynomial": ScheduleKind(_polynomial, ("final", "power"), needs_total_steps=True),
    "step": ScheduleKind(_step, ("every", "gamma")),
    "exponential": ScheduleKind(_exponential, ("every", "gamma", "final")),
    "piecewise": ScheduleKind(_piecewise, ("at", "factors")),
    "cosine_restarts": ScheduleKind(_cosine_restarts, ("period", "growth", "final", "decay")),
    "one_cycle": ScheduleKind(_one_cycle, ("rise", "start", "final"), needs_total_steps=True),
    "inverse_sqrt": ScheduleKind(_inverse_sqrt, ("scale",)),
    "wsd": ScheduleKind(_wsd, ("decay", "final", "curve"), needs_total_steps=True),
    "cyclical": ScheduleKind(_cyclical, ("period", "low", "gamma")),
}
