"""A search space: the values that may be chosen for each key, in Hydra's own grammar."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from runner.config.overrides import parse_overrides
from runner.errors import ConfigError, raise_combined

_DIGITS = 6  # of a chosen number, so that a person can read it; sampler and job get the same
MOST_VALUES = 100_000  # of a key, and jobs of a grid: more would fill the memory before the first
_STEP_DIGITS = 12  # of one that steps lead to: all that are written, none of those of rounding
_FORMS = "write choice(a, b), range(1, 9), interval(0, 1) or tag(log, interval(1e-4, 1))"


@dataclass(frozen=True)
class Dimension:
    """One key of a space."""

    key: str
    # of a categorical key, as they are written in an override; else empty
    choices: tuple[str, ...] = ()
    low: float = 0.0  # the lowest value
    high: float = 0.0  # the highest value
    step: float | None = None  # None: any number in between
    log: bool = False
    is_whole: bool = False  # integers only

    def values(self) -> list[Any] | None:
        """Return every value that can be chosen, in order; None if they cannot be counted."""
        if self.choices:
            return list(self.choices)
        if self.step is None and not self.is_whole:
            return None
        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.round_value(self.low + k * step) for k in range(count)]

    def round_value(self, value: Any) -> Any:
        """Return the number that the job and the sampler get, within the bounds."""
        if self.choices:
            return value
        if self.is_whole:
            return round(value)
        digits = _DIGITS if self.step is None else _STEP_DIGITS
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    def value_at(self, fraction: float) -> Any:
        """Return the value at a fraction, from 0 to below 1, of the way through the dimension."""
        values = self.values()
        if values is not None and not (self.log and self.is_whole):
            return values[min(int(fraction * len(values)), len(values) - 1)]
        if not self.log:
            return self.round_value(self.low + fraction * (self.high - self.low))
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_whole else (self.low, self.high)
        value = math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
        return min(max(self.round_value(value), self.low), self.high)


Space = tuple[Dimension, ...]


def read_space(
    settings: Mapping[str, Any], overrides: Sequence[Override]
) -> tuple[Space, list[str]]:
    """Return the space of a `search` node after the overrides of the command line.

    Args:
        settings: key -> expression.
        overrides: of the command line. One of several values adds or replaces a key, one of a
            single value takes the key out of the search.

    Returns:
        The space, and notes on the keys that were taken out.

    Raises:
        ConfigError: with every mistake.
    """
    problems: list[str] = []
    dimensions: dict[str, Dimension] = {}
    for key, text in settings.items():
        try:
            [override] = parse_overrides([f"{key}={text}"])
            dimensions[key] = _dimension(override, f"search.space: {key}: {text}")
        except ConfigError as error:
            where = f"search.space: {key}: {text}: "
            problems.append(where + str(error).removeprefix(f"{key}={text}: ").removeprefix(where))
    notes = []
    for override in overrides:
        key, text = override.key_or_group, str(override.input_line)
        if override.is_sweep_override():
            try:
                dimensions[key] = _dimension(override, text)
            except ConfigError as error:
                problems.append(str(error))
        elif key in dimensions:
            del dimensions[key]
            notes.append(f"{text}: held fixed, so it is not searched")
    raise_combined(problems)
    if not dimensions:
        raise ConfigError(
            "search.space: is empty; key=interval(0,1) or key=choice(a,b), on the command line or "
            "in the search's YAML, says what is to be searched"
        )
    return tuple(dimensions.values()), notes


def _dimension(override: Override, text: str) -> Dimension:
    """Return one dimension.

    Raises:
        ConfigError: for a value that is no set of values, or a range that is empty.
    """
    value = override.value()
    key = override.get_key_element()
    if isinstance(value, ChoiceSweep):
        return Dimension(key, tuple(dict.fromkeys(listed_values(override))))
    if not isinstance(value, RangeSweep | IntervalSweep):
        raise ConfigError(f"{text}: is no set of values to search; {_FORMS}")
    unknown = sorted(value.tags - {"log", "int", "float"})
    if unknown:
        raise ConfigError(f"{text}: there is no tag {unknown[0]!r} for a search; {_FORMS}")
    dimension = _range(key, value) if isinstance(value, RangeSweep) else _interval(key, value)
    if dimension is None or dimension.high < dimension.low:
        raise ConfigError(f"{text}: holds no value; its first number must be below the second")
    if dimension.log and dimension.low <= 0:
        raise ConfigError(
            f"{text}: a logarithmic range must begin above 0, as in tag(log, interval(1e-4, 1))"
        )
    return dimension


def listed_values(override: Override) -> list[str]:
    """Return the values of an override that has several, as they are written in one of a job.

    Raises:
        ConfigError: for values that Hydra cannot list, and for more than `MOST_VALUES` in a range.
    """
    value = override.value()
    if isinstance(value, RangeSweep) and value.step:
        count = ((value.stop or 0) - (value.start or 0)) / value.step
        if not count <= MOST_VALUES:
            raise ConfigError(
                f"{override.input_line}: lists {count:.3g} values; a key of a sweep has at most "
                f"{MOST_VALUES:,}"
            )
    try:
        return [str(value) for value in override.sweep_string_iterator()]
    except Exception as error:  # Hydra raises errors of many kinds here
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{override.input_line}: its values cannot be listed ({reason}); name them, as in "
            f"{override.key_or_group}=a,b, or give their range, as in range(1, 9)"
        ) from error


def _range(key: str, value: RangeSweep) -> Dimension | None:
    start, stop, step = value.start, value.stop, value.step
    if start is None or stop is None or step <= 0 or stop <= start:
        return None
    is_whole = all(isinstance(n, int) for n in (start, stop, step))
    count = math.ceil((stop - start) / step - 1e-9)
    log = "log" in value.tags
    high = float(f"{start + (count - 1) * step:.{_STEP_DIGITS}g}")
    return Dimension(key, (), start, high, None if log else step, log, is_whole)


def _interval(key: str, value: IntervalSweep) -> Dimension | None:
    low, high = value.start, value.end
    if low is None or high is None:
        return None
    is_whole = "int" in value.tags or (isinstance(low, int) and isinstance(high, int))
    if is_whole:
        low, high = math.ceil(low), math.floor(high)
    return Dimension(key, (), low, high, None, "log" in value.tags, is_whole)


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of values, the last key varying fastest.

    Raises:
        ConfigError: if they cannot be counted.
    """
    continuous = [d.key for d in space if d.values() is None]
    if continuous:
        raise ConfigError(
            f"search.sampler=grid: {', '.join(continuous)} may be any number of an interval; a "
            "grid needs choice(...) or range(...)"
        )
    for values in itertools.product(*(d.values() or [] for d in space)):
        yield {d.key: v for d, v in zip(space, values)}


def corners(space: Space) -> list[list[str]]:
    """Return overrides of a few points that together have every choice and every bound."""
    ends = [list(d.choices) or [d.round_value(d.low), d.round_value(d.high)] for d in space]
    return [
        [f"{d.key}={values[min(k, len(values) - 1)]}" for d, values in zip(space, ends)]
        for k in range(max(map(len, ends)))
    ]
