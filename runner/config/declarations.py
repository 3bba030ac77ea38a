"""Reads what the settings dataclasses declare of their keys: types, bounds, choices, signature."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

from runner.config.intervals import parse_interval
from runner.config.settings import SETTINGS_BY_NODE, SETTINGS_BY_TARGET
from runner.config_key import KEY, Key, Signed
from runner.errors import ConfigError

LISTS = (list, tuple, Sequence)
MAPPINGS = (dict, Mapping)
CONTAINERS = (*LISTS, *MAPPINGS)
NO_DEFAULT = MISSING
GIVEN_IN_CODE = object()  # the default of a part's argument, which nobody needs to know
_UNDECLARED = Key("")


@dataclass(frozen=True)
class Declaration:
    """One field of a settings dataclass, or one argument of a part."""

    hint: Any  # the type, without the annotation
    key: Key
    default: Any  # `NO_DEFAULT` for a key that must be given
    settings: type | None  # the dataclass of the keys below this one; None for a single value


@lru_cache(maxsize=128)
def read_declarations(settings: type) -> Mapping[str, Declaration]:
    """Return what a settings dataclass declares, by the names of its fields."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {
        f.name: make_declaration(
            hints[f.name],
            f.default if f.default_factory is MISSING else f.default_factory(),
            f.metadata.get(KEY, _UNDECLARED),
        )
        for f in fields(settings)
    }


def make_declaration(annotated: Any, default: Any, declared: Key = _UNDECLARED) -> Declaration:
    """Return the declaration of a type that may be annotated with a `Key`, if none is declared."""
    hint, key = split_annotation(annotated)
    key = key if declared is _UNDECLARED else declared
    if typing.get_origin(hint) is Literal and not key.choices:
        key = replace(key, choices=tuple(map(str, typing.get_args(hint))))
        hint = str
    return Declaration(hint, key, default, cast(type, hint) if is_dataclass(hint) else None)


def split_annotation(annotated: Any) -> tuple[Any, Key]:
    """Return a type without its annotation, and its `Key`; an empty one if it has none."""
    if typing.get_origin(annotated) is not Annotated:
        return annotated, _UNDECLARED
    hint, *notes = typing.get_args(annotated)
    return hint, next((n for n in notes if isinstance(n, Key)), _UNDECLARED)


def settings_of(node: str, target: object = None) -> type | None:
    """Return the settings dataclass of a node, or None for a node that has none.

    Args:
        node: the dotted name, such as `trainer.clip`.
        target: the node's `_target_`, if it has one.
    """
    first, *rest = node.split(".")
    settings = SETTINGS_BY_NODE.get(first) or SETTINGS_BY_TARGET.get(str(target))
    for name in rest if first in SETTINGS_BY_NODE else ():
        found = read_declarations(settings).get(name) if settings is not None else None
        settings = found.settings if found is not None else None
    return settings


def find_range_problem(key: str, value: Any, declared: Key, hint: Any = Any) -> str | None:
    """Return a message if a value of the right type is not what its key takes.

    Args:
        key: dotted.
        value: of the type.
        declared: of the key.
        hint: the type, whose items may have declarations of their own.
    """
    if declared.interval:
        try:
            allow_time = declared.interval == "progress or time"
            parse_interval(value, key=key, allow_time=allow_time, why_no_time=declared.note)
        except ConfigError as error:
            return str(error)
        return None
    if problem := declared.find_problem(key, value):
        return problem
    item_hint, item_key = _item_declaration(hint)
    named: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        named = [(f"{key}.{name}", inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        named = [(f"{key}[{i}]", inner) for i, inner in enumerate(value)]
    problems = (find_range_problem(k, inner, item_key, item_hint) for k, inner in named)
    return next(filter(None, problems), None)


def describe_range(declaration: Declaration) -> str:
    """Return the values that a key takes, in a few words, those of its items included."""
    item_hint, item_key = _item_declaration(declaration.hint)
    of_items = item_key.range or _item_declaration(item_hint)[1].range
    parts = [declaration.key.range, f"each {of_items}" * bool(of_items)]
    return "; ".join(filter(None, parts))


def _item_declaration(hint: Any) -> tuple[Any, Key]:
    """Return the type and the `Key` of what a list or a mapping holds."""
    arguments = typing.get_args(hint)
    is_container = typing.get_origin(hint) in CONTAINERS and arguments
    return split_annotation(arguments[-1] if is_container else Any)


def all_declarations() -> Iterator[tuple[str, Declaration]]:
    """Yield every declared key by its dotted name, those of every loop included."""
    for node, settings in SETTINGS_BY_NODE.items():
        yield from _walk(settings, f"{node}." if node else "")
    for settings in SETTINGS_BY_TARGET.values():
        yield from _walk(settings, "loop.")


def _walk(settings: type, prefix: str) -> Iterator[tuple[str, Declaration]]:
    for name, declaration in read_declarations(settings).items():
        yield f"{prefix}{name}", declaration
        if declaration.settings is not None:
            yield from _walk(declaration.settings, f"{prefix}{name}.")


def choices_by_key() -> dict[str, tuple[str, ...]]:
    """Return the choices of every key that has some, by its dotted name."""
    return {key: d.key.choices for key, d in all_declarations() if d.key.choices}


def keys_signed(*kinds: Signed) -> list[str]:
    """Return the dotted names of the keys whose part in the signature is one of these."""
    return [key for key, d in all_declarations() if d.key.signed in kinds]
