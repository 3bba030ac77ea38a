"""Checks values of a configuration, and arguments of code, against their types and `Key`s.

It also limits how many values a YAML may expand to. No torch here.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, get_type_hints

import yaml

from runner.config_key import UNDECLARED, Key, field_hints
from runner.errors import ConfigError, raise_combined, unknown_choice

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
    """Return the type of the items of a list or a mapping; Any for another type."""
    arguments = typing.get_args(hint)
    is_container = typing.get_origin(hint) in (*LISTS, *MAPPINGS) and arguments
    return arguments[-1] if is_container else Any


def matches_type(value: Any, hint: Any) -> bool:
    """Return whether a plain value is of a type. An int is a float, a bool is not a number."""
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
    hint = number_hint(value, whole="whole number" in expected) if "number" in expected else ""
    return f"{key}={shorten(value)}: expected {expected}, got {got}{hint}"


def number_hint(value: Any, *, whole: bool = True) -> str:
    """Return `; nearest: 10000` for values meant as a number, such as 10k, 1M, '1' and 1e4.

    Args:
        whole: whether the number must be a whole one; 1e4 is a fraction for YAML.
    """
    match = re.fullmatch(r"\s*([\d_.]+(?:[eE][+-]?\d+)?)\s*([kKM]?)\s*", str(value))
    if match is None or not isinstance(value, str | float):
        return ""
    try:
        number = float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6}[match[2]]
    except ValueError:
        return ""
    if number >= 2**53 or (whole and number != int(number)):
        return ""
    return f"; nearest: {int(number) if number == int(number) else number}"


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
    """Return a value as displayed in a message, with at most 60 characters."""
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def find_problem(key: str, value: Any, annotated: Any) -> str | None:
    """Return a message if a value is not of a type, or out of the range of the type's `Key`.

    An interval is checked by its parser.
    """
    hint, declared = split_annotation(annotated)
    if not matches_type(value, hint):
        if declared.choices and hint is str and not isinstance(value, list | tuple | Mapping):
            return unknown_choice(key, value, declared.choices)
        return next(find_wrong_types(key, value, hint, declared))
    return None if declared.interval else find_value_problem(key, value, declared, hint)


def find_value_problem(key: str, value: Any, declared: Key, hint: Any = Any) -> str | None:
    """Return a message if a value of the right type, or an item, is out of range or not a choice.

    Args:
        hint: the type, whose items may have declarations of their own.
    """
    if problem := declared.find_problem(key, value):
        if isinstance(value, str) and declared.choices and bool in typing.get_args(hint):
            return unknown_choice(key, value, ("true", "false", *declared.choices))
        return problem
    item_hint, item_key = split_annotation(item_annotation(hint))
    inner_values: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inner_values = [(f"{key}.{name}", inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        inner_values = [(f"{key}[{i}]", inner) for i, inner in enumerate(value)]
    problems = (find_value_problem(k, inner, item_key, item_hint) for k, inner in inner_values)
    return next(filter(None, problems), None)


def check_value(key: str, value: Any, annotated: Any) -> None:
    """Check a value against a type that may be annotated with a `Key`.

    Raises:
        ConfigError: with the key, the value and the rule.
    """
    if problem := find_problem(key, value, annotated):
        raise ConfigError(problem)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a constructor against their annotations, when code calls it.

        def __init__(self, *, window: Annotated[int, Key(ge=1)] = 100) -> None:
            check_arguments(LossGuard.__init__, locals())

    Those from a configuration have been checked before, without the module being imported.

    Raises:
        ConfigError: with every mistake.
    """
    hints = argument_hints(function).items()
    raise_combined(
        filter(None, (find_problem(n, arguments[n], h) for n, h in hints if n in arguments))
    )


@lru_cache(maxsize=256)
def argument_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of those arguments whose types a configuration could give."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hint for name, hint in hints.items() if _is_plain(hint)}


def _is_plain(hint: Any) -> bool:
    """Return whether a type consists of types that `matches_type` knows."""
    hint, _ = split_annotation(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (*LISTS, *MAPPINGS, typing.Union, types.UnionType):
        return all(map(_is_plain, args))
    return hint in (*_TYPE_NAMES, Any, object, type(None))


def find_field_problems(record: Any, prefix: str) -> Iterator[str]:
    """Yield a message for every field of a dataclass that does not match its type and `Key`.

    Args:
        prefix: of its keys, such as `metrics.`.
    """
    settings: Any = type(record)
    for name, hint in field_hints(settings).items():
        if _is_plain(hint) and (p := find_problem(f"{prefix}{name}", getattr(record, name), hint)):
            yield p


def compose_yaml(text: str, where: str, *, most_values: int) -> yaml.Node | None:
    """Return the nodes of a YAML file.

    Args:
        most_values: that the file may expand to, including those repeated by its aliases.

    Raises:
        ConfigError: if it is not YAML, or is a few lines whose aliases multiply without end.
    """
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
        num_values = _count_values(root, {})
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where}: not a YAML file: {' '.join(str(error).split())}") from error
    if num_values > most_values:
        raise ConfigError(
            f"{where}: refused: its aliases stand for more than {most_values:,} values"
        )
    return root


def _count_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Count the values to which a node expands, including those repeated by its aliases."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf  # until it is counted: a node within itself is infinite
        items = [n for pair in node.value for n in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_count_values(item, known) for item in items)
    return known[id(node)]
