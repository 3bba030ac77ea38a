"""Reads what the settings dataclasses declare of their keys: types, bounds, choices, signature."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, cast

from runner.config.intervals import parse_interval
from runner.config.settings import SETTINGS_BY_NODE, SETTINGS_BY_TARGET
from runner.config_key import Key, Signed
from runner.errors import ConfigError

NO_DEFAULT = MISSING
_UNDECLARED = Key("")


@dataclass(frozen=True)
class Declaration:
    """One field of a settings dataclass.

    Args:
        hint: the type, without the annotation.
        default: `NO_DEFAULT` for a key that must be given.
        settings: the dataclass of the keys below this one, or None for a single value.
    """

    hint: Any
    key: Key
    default: Any
    settings: type | None


@lru_cache(maxsize=128)
def read_declarations(settings: type) -> Mapping[str, Declaration]:
    """Return what a settings dataclass declares, by the names of its fields."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {f.name: _declaration(hints[f.name], f) for f in fields(settings)}


def _declaration(annotated: Any, field: Any) -> Declaration:
    key, hint = _UNDECLARED, annotated
    if typing.get_origin(annotated) is Annotated:
        hint, *notes = typing.get_args(annotated)
        key = next((n for n in notes if isinstance(n, Key)), _UNDECLARED)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Declaration(hint, key, default, cast(type, hint) if is_dataclass(hint) else None)


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


def find_range_problem(key: str, value: Any, declared: Key) -> str | None:
    """Return a message if a value of the right type is not what its key takes."""
    if not declared.interval:
        return declared.find_problem(key, value)
    try:
        parse_interval(value, key=key, allow_time=declared.interval == "progress or time")
    except ConfigError as error:
        return str(error)
    return None


def all_declarations() -> Iterator[tuple[str, Declaration]]:
    """Yield every declared key by its dotted name, those of every loop included."""
    for node, settings in SETTINGS_BY_NODE.items():
        yield from _walk(settings, f"{node}." if node else "")
    for target, settings in SETTINGS_BY_TARGET.items():
        if target.startswith("runner.training.loops."):
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
