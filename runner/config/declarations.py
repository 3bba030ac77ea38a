"""Reads the declarations of keys in settings dataclasses: types, bounds, choices, signature."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, cast

from runner.config.intervals import parse_interval
from runner.config.settings import SETTINGS_BY_NODE, SETTINGS_BY_TARGET
from runner.config_key import KEY, UNDECLARED, Key, Signed
from runner.config_value import find_value_problem, item_annotation, matches_type, split_annotation
from runner.errors import ConfigError

NO_DEFAULT = MISSING
GIVEN_IN_CODE = object()  # the default of a part's argument that users need not know


@dataclass(frozen=True)
class Declaration:
    """One field of a settings dataclass, or one argument of a part."""

    hint: Any  # the type, without the annotation
    key: Key
    default: Any  # `NO_DEFAULT` for a required key
    settings: type | None  # the dataclass of the keys below this one; None for a single value


@lru_cache(maxsize=128)
def read_declarations(settings: type) -> Mapping[str, Declaration]:
    """Return the declarations of a settings dataclass, by the names of its fields."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {
        f.name: make_declaration(
            hints[f.name],
            f.default if f.default_factory is MISSING else f.default_factory(),
            f.metadata.get(KEY, UNDECLARED),
        )
        for f in fields(settings)
    }


def make_declaration(annotated: Any, default: Any, declared: Key = UNDECLARED) -> Declaration:
    """Return the declaration of a type, possibly annotated with a `Key`, unless one is given."""
    hint, key = split_annotation(
        annotated if declared is UNDECLARED else Annotated[annotated, declared]
    )
    return Declaration(hint, key, default, cast(type, hint) if is_dataclass(hint) else None)


def settings_of(node: str, target: object = None) -> type | None:
    """Return the settings dataclass of a node such as `trainer.clip`; None if it has none."""
    first, *rest = node.split(".")
    settings = SETTINGS_BY_NODE.get(first) or SETTINGS_BY_TARGET.get(str(target))
    for name in rest if first in SETTINGS_BY_NODE else ():
        declaration = read_declarations(settings).get(name) if settings is not None else None
        settings = declaration.settings if declaration is not None else None
    return settings


def find_range_problem(key: str, value: Any, declared: Key, hint: Any = Any) -> str | None:
    """Return a message if a value of the right type is outside its declared range.

    Args:
        hint: the type, whose items may have declarations.
    """
    if declared.interval:
        try:
            allow_time = declared.interval == "progress or time"
            parse_interval(
                value,
                key=key,
                allow_time=allow_time,
                why_no_time=declared.note,
                allow_null=matches_type(None, hint),
            )
        except ConfigError as error:
            return str(error)
        return None
    return find_value_problem(key, value, declared, hint)


def describe_range(declaration: Declaration) -> str:
    """Describe the values that a key accepts, including those of its items, in a few words."""
    item_hint, item_key = split_annotation(item_annotation(declaration.hint))
    of_items = item_key.range or split_annotation(item_annotation(item_hint))[1].range
    parts = [declaration.key.range, f"each {of_items}" * bool(of_items)]
    return "; ".join(filter(None, parts))


def all_declarations() -> Iterator[tuple[str, Declaration]]:
    """Yield every declared key by its dotted name, including those of every loop."""
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
    """Return the choices of every key with choices, by its dotted name."""
    return {key: d.key.choices for key, d in all_declarations() if d.key.choices}


def keys_signed(*kinds: Signed) -> list[str]:
    """Return the dotted names of the keys with one of these values of `signed`."""
    return [key for key, d in all_declarations() if d.key.signed in kinds]
