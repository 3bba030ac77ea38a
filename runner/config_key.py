"""What a key of the configuration may hold, written where its record or its part takes it.

    batch_size: int = setting(4096, "rows of one rank and micro-batch", ge=1, unit="rows")
    def __init__(self, *, num_layers: Annotated[int, Key(ge=1)]) -> None: ...

This is the only place where a key is described: the checks, `ls`, the signature and the reference
page (docs/reference.md) read it there, and a test holds the YAML against it. `check_value` and
`check_arguments` hold values and arguments of code against it. No torch here.
"""

from __future__ import annotations

import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, get_type_hints

from runner.errors import ConfigError, raise_combined, unknown_choice

# Whether a key enters the signature of a run, which names what makes its result.
# "when set": only if it is neither null nor false nor empty. "when on": the settings of a rule
# enter only while the rule is on. "in global_batch": as a factor of the rows of an update.
Signed = Literal["yes", "no", "when set", "when on", "in global_batch"]

KEY = "key"  # of a field's metadata, which holds its declaration
_INT64 = 2**63  # no number of a configuration may be larger
# bounds of a `Key`: how a message says them, and what holds for a number and the bound
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("below", operator.lt),
}


@dataclass(frozen=True)
class Key:
    """The declaration of one key, beside the type of its field.

    Args:
        doc: what the key is; the comment behind it in the YAML is the same text. Arguments of
            parts have none: their YAML and their docstring say it.
        ge: the least number that is allowed.
        gt: a number that every allowed one is above.
        le: the greatest number that is allowed.
        lt: a number that every allowed one is below; `math.inf` refuses infinity.
        min_items: of a list, whose items the bounds hold for.
        max_items: of a list.
        choices: the texts that are allowed; empty: any text.
        pattern: a regular expression for further texts beside the choices, or for all texts that
            are allowed, which the note then describes.
        interval: whether it is an interval such as `100` (updates), `5000ex` or `2ep`, which may
            also be a time where it is "progress or time".
        note: what is added to the message about a number that is out of range.
        unit: of a number.
        signed: whether the key enters the signature.
        auto: whether the word `auto` is taken, which is replaced by a number once the train rows
            are counted (runner/config/proposed_length.py), before types are checked.
    """

    doc: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_items: int = 0
    max_items: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    interval: Literal["progress", "progress or time"] | None = None
    note: str = ""
    unit: str = ""
    signed: Signed = "yes"
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
        """Return a message if a value of the right type is out of range or no choice.

        A number is finite and fits into 64 bits, whatever its bounds are.

        Args:
            key: the dotted name of the key, for the message.
            value: as it stands in the configuration; whether it may be null is said by the type.
        """
        if isinstance(value, str):
            is_free = not self.choices and self.pattern is None
            if is_free or value in self.choices or self._matches_pattern(value):
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

    def _matches_pattern(self, value: str) -> bool:
        return self.pattern is not None and re.fullmatch(self.pattern, value) is not None

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


UNDECLARED = Key()  # of what has no declaration


def setting(default: Any, doc: str, **declared: Any) -> Any:
    """Return the field of a settings dataclass, with the declaration of its key.

    Args:
        default: what the key has unless it is given, or a function that makes it; MISSING where it
            must be given.
        doc: what the key is.
        declared: further arguments of `Key`.
    """
    metadata = {KEY: Key(doc, **declared)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _shown(value: float) -> str:
    # the digits of a very long whole number would fill the terminal
    return f"{value:.1e}" if isinstance(value, float) and abs(value) > _INT64 else str(value)[:60]


def _bound_text(bound: float) -> str:
    is_power = isinstance(bound, int) and bound > 10**9 and bound & (bound - 1) == 0
    if is_power:
        return f"2**{int(bound).bit_length() - 1}"
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


LISTS = (list, tuple, Sequence)
MAPPINGS = (dict, Mapping)
_TYPE_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "group of keys",
    list: "list",
}


def split_annotation(annotated: Any) -> tuple[Any, Key]:
    """Return a type without its annotation, and its `Key`; an empty one if it has none.

    The values of a `Literal` are the choices of a text.
    """
    hint, *notes = (annotated,)
    if typing.get_origin(annotated) is Annotated:
        hint, *notes = typing.get_args(annotated)
    key = next((n for n in notes if isinstance(n, Key)), UNDECLARED)
    if typing.get_origin(hint) is Literal and not key.choices:
        return str, replace(key, choices=tuple(map(str, typing.get_args(hint))))
    return hint, key


def item_annotation(hint: Any) -> Any:
    """Return the type of what a list or a mapping holds; Any for another type."""
    arguments = typing.get_args(hint)
    is_container = typing.get_origin(hint) in (*LISTS, *MAPPINGS) and arguments
    return arguments[-1] if is_container else Any


def matches_type(value: Any, hint: Any) -> bool:
    """Return whether a plain value is of a type. An int is a float, a bool is no number."""
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    hint, _ = split_annotation(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(matches_type(value, a) for a in args)
    if origin in LISTS:
        inner = args[0] if args else Any
        return isinstance(value, list | tuple) and all(matches_type(v, inner) for v in value)
    if origin in MAPPINGS:
        return isinstance(value, Mapping) and all(matches_type(v, args[1]) for v in value.values())
    if hint is None or hint is type(None):
        return value is None
    if is_dataclass(hint):
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def type_name(hint: Any) -> str:
    """Return a type in words, such as `whole number or null`."""
    hint, _ = split_annotation(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in args)
    if origin in LISTS:
        return f"list of {type_name(args[0])}" if args and args[0] is not Any else "list"
    if hint is type(None):
        return "null"
    if hint is Any:
        return "anything"
    if origin in MAPPINGS:
        return _TYPE_NAMES[dict]
    return _TYPE_NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def wrong_type(key: str, value: Any, expected: str) -> str:
    """Return the message for a value of another type than the one expected, in words."""
    got = "null" if value is None else f"{type_name(type(value))} {value!r}"
    return f"{key}={shorten(value)}: expected {expected}, got {got}"


def find_wrong_types(key: str, value: Any, hint: Any, declared: Key) -> Iterator[str]:
    """Yield what does not match a type: single entries of a group of keys, or the whole value."""
    kinds = [h for h in typing.get_args(hint) or [hint] if typing.get_origin(h) in MAPPINGS]
    kinds = [hint] if typing.get_origin(hint) in MAPPINGS else kinds
    if isinstance(value, Mapping) and kinds:
        inner = typing.get_args(kinds[0])[1]
        for name, entry in value.items():
            if not matches_type(entry, inner):
                yield wrong_type(f"{key}.{name}", entry, type_name(inner))
    else:
        yield wrong_type(key, value, f"{type_name(hint)}{' or auto' * declared.auto}")


def shorten(value: Any) -> str:
    """Return a value as a message shows it, on at most 60 characters."""
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def find_problem(key: str, value: Any, annotated: Any) -> str | None:
    """Return a message if a value is not of a type, or out of the range of the type's `Key`.

    An interval is checked by what parses it.

    Args:
        key: the dotted name, for the message.
        value: of anything.
        annotated: the type, which may be annotated with a `Key`, as its items may.
    """
    hint, declared = split_annotation(annotated)
    if not matches_type(value, hint):
        if declared.choices and hint is str and not isinstance(value, list | tuple | Mapping):
            return unknown_choice(key, value, declared.choices)
        return next(find_wrong_types(key, value, hint, declared))
    return None if declared.interval else find_value_problem(key, value, declared, hint)


def find_value_problem(key: str, value: Any, declared: Key, hint: Any = Any) -> str | None:
    """Return a message if a value of the right type, or one in it, is out of range or no choice.

    Args:
        key: the dotted name, for the message.
        value: of the type.
        declared: of the key.
        hint: the type, whose items may have declarations of their own.
    """
    if problem := declared.find_problem(key, value):
        return problem
    item_hint, item_key = split_annotation(item_annotation(hint))
    named: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        named = [(f"{key}.{name}", inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        named = [(f"{key}[{i}]", inner) for i, inner in enumerate(value)]
    problems = (find_value_problem(k, inner, item_key, item_hint) for k, inner in named)
    return next(filter(None, problems), None)


def check_value(key: str, value: Any, annotated: Any) -> None:
    """Check a value against a type that may be annotated with a `Key`.

    Raises:
        ConfigError: with the key, the value and the rule.
    """
    if problem := find_problem(key, value, annotated):
        raise ConfigError(problem)


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check the arguments of a constructor against their annotations, for those who call it.

        def __init__(self, *, window: Annotated[int, Key(ge=1)] = 100) -> None:
            check_arguments(LossGuard.__init__, locals())

    A configuration has been held against them before, without the module being imported.

    Args:
        function: whose arguments are annotated.
        given: their values by name, which may have others beside them.

    Raises:
        ConfigError: with every mistake.
    """
    hints = argument_hints(function).items()
    raise_combined(filter(None, (find_problem(n, given[n], h) for n, h in hints if n in given)))


@lru_cache(maxsize=256)
def argument_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of those arguments whose types a configuration could give."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hint for name, hint in hints.items() if _is_plain(hint)}


def _is_plain(hint: Any) -> bool:
    """Return whether a type consists of those that `matches_type` knows."""
    hint, _ = split_annotation(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (*LISTS, *MAPPINGS, typing.Union, types.UnionType):
        return all(map(_is_plain, args))
    return hint in (*_TYPE_NAMES, Any, object, type(None))


@lru_cache(maxsize=128)
def field_hints(settings: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass by name, annotated with their `Key`."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        f.name: Annotated[hints[f.name], f.metadata[KEY]] if KEY in f.metadata else hints[f.name]
        for f in fields(settings)
    }


def find_field_problems(record: Any, prefix: str) -> Iterator[str]:
    """Yield a message for every field of a dataclass that is not what its type and `Key` say.

    Args:
        record: of a dataclass.
        prefix: of its keys, such as `metrics.`.
    """
    settings: Any = type(record)
    for name, hint in field_hints(settings).items():
        if _is_plain(hint) and (p := find_problem(f"{prefix}{name}", getattr(record, name), hint)):
            yield p
