"""The declaration of a configuration key, next to the field or argument that takes its value.

    batch_size: int = setting(4096, "rows of one rank and micro-batch", ge=1, unit="rows")
    def __init__(self, *, num_layers: Annotated[int, Key(ge=1)]) -> None: ...

This is the only place where a key is described: the checks, `ls`, the signature and the reference
page (docs/reference.md) read it there, and a test checks the YAML against it. `runner.config_value`
checks values against it. No torch here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, get_type_hints

from runner.errors import unknown_choice

# Whether a key enters the signature of a run, which identifies what determines its result.
# "when set": only if it is neither null nor false nor empty. "when on": the settings of a rule
# enter only while the rule is on. "in global_batch": as a factor of the rows of an update.
Signed = Literal["yes", "no", "when set", "when on", "in global_batch"]

KEY = "key"  # of a field's metadata, which holds its declaration
_INT64 = 2**63  # no integer of a configuration may be larger
# bounds of a `Key`: their wording in messages, and the comparison of a number with the bound
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("below", operator.lt),
}


@dataclass(frozen=True)
class Key:
    """The declaration of one key, in addition to the type of its field."""

    # what the key is; the comment behind it in the YAML is the same text. Arguments of parts have
    # none: their YAML and their docstring say it
    doc: str = ""
    ge: float | None = None  # the least allowed number
    gt: float | None = None  # a number that every allowed one exceeds
    le: float | None = None  # the greatest allowed number
    lt: float | None = None  # all allowed ones are below; `math.inf` refuses infinity
    min_items: int = 0  # of a list; the other bounds are for its items
    max_items: int | None = None
    choices: tuple[str, ...] = ()  # the allowed texts; empty: any text
    # of further texts besides the choices, or of all allowed texts, which the note then describes
    pattern: str | None = None
    # such as `100` (updates), `5000ex` or `2ep`, and a time where it is "progress or time"
    interval: Literal["progress", "progress or time"] | None = None
    note: str = ""  # added to the message about a number that is out of range
    unit: str = ""  # of a number
    signed: Signed = "yes"  # whether the key enters the signature
    # whether the word `auto` is allowed, which is replaced by a number once the train rows are
    # counted (runner/config/proposed_length.py), before types are checked
    auto: bool = False

    @property
    def range(self) -> str:
        """The values that are allowed, in a few words; empty: all of the type."""
        if self.interval:
            return "an interval" if self.interval == "progress" else "an interval, also a time"
        word = "or auto" * self.auto
        parts = [", ".join(self.choices), " and ".join(self._bounds), self._length, word]
        return "; ".join(filter(None, parts))

    def find_problem(self, key: str, value: Any) -> str | None:
        """Return a message if a value of the right type is out of range or not a choice.

        A number must be finite and fit into 64 bits, whatever its bounds are.

        Args:
            value: from the configuration; the type says whether it may be null.
        """
        if isinstance(value, str):
            is_free = not self.choices and self.pattern is None
            matches = self.pattern is not None and re.fullmatch(self.pattern, value)
            if is_free or value in self.choices or matches:
                return None
            if not self.choices:
                return f"{key}={value}: must be {self.note}"
            return unknown_choice(key, value, self.choices)
        if isinstance(value, list | tuple):
            return self._find_item_problem(key, value)
        if isinstance(value, Mapping):
            problems = (self.find_problem(f"{key}.{name}", inner) for name, inner in value.items())
            return next(filter(None, problems), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or self._is_in_range(value):
            return None
        rule = " and ".join(self._bounds) or "a finite number"
        if self.lt is None and self.le is None:
            if isinstance(value, int) and abs(value) >= _INT64:
                rule = f"{rule} and below {_bound_text(_INT64)}"
            elif self._bounds and not math.isfinite(value):
                rule = f"{rule} and finite"
        rule = "must not be negative" if rule == "at least 0" and value < 0 else f"must be {rule}"
        return f"{key}={_shown(value)}: {rule}{f'; {self.note}' if self.note else ''}"

    def _find_item_problem(self, key: str, values: Sequence[Any]) -> str | None:
        too_many = self.max_items is not None and len(values) > self.max_items
        if too_many or len(values) < self.min_items:
            return f"{key}={list(values)}: needs {self._length}"
        of_item = replace(self, min_items=0, max_items=None)
        problems = (of_item.find_problem(f"{key}[{i}]", inner) for i, inner in enumerate(values))
        return next(filter(None, problems), None)

    def _is_in_range(self, value: float) -> bool:
        # NaN fails every comparison
        limit = math.inf if isinstance(value, float) else _INT64
        bounds = ((getattr(self, name), holds) for name, (_, holds) in _BOUNDS.items())
        return -limit < value < limit and all(b is None or holds(value, b) for b, holds in bounds)

    @property
    def _length(self) -> str:
        if self.min_items and self.min_items == self.max_items:
            return f"{self.min_items} items"
        return f"at least {self.min_items} item{'s' * (self.min_items > 1)}" * bool(self.min_items)

    @property
    def _bounds(self) -> list[str]:
        bounds = ((getattr(self, name), words) for name, (words, _) in _BOUNDS.items())
        return [
            "finite" if bound == math.inf else f"{words} {_bound_text(bound)}"
            for bound, words in bounds
            if bound is not None
        ]


UNDECLARED = Key()  # for a field without a declaration


def setting(default: Any, doc: str, **declared: Any) -> Any:
    """Return the field of a settings dataclass, with the declaration of its key.

    Args:
        default: the key's value unless it is given, or a function that makes it; MISSING if it
            must be given.
        declared: further arguments of `Key`.
    """
    metadata = {KEY: Key(doc, **declared)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _shown(value: float) -> str:
    # the digits of a very long integer would fill the terminal
    return f"{value:.1e}" if isinstance(value, float) and abs(value) > _INT64 else str(value)[:60]


def _bound_text(bound: float) -> str:
    is_power = isinstance(bound, int) and bound > 10**9 and bound & (bound - 1) == 0
    if is_power:
        return f"2**{int(bound).bit_length() - 1}"
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


@lru_cache(maxsize=128)
def field_hints(settings: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass by name, annotated with their `Key`."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        f.name: Annotated[hints[f.name], f.metadata[KEY]] if KEY in f.metadata else hints[f.name]
        for f in fields(settings)
    }
