"""Checks of a recipe's settings, for messages that name the key before any work is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from runner.errors import ConfigError, nearest_hint

LAST_BATCH_POLICIES = ("short", "drop", "pad")  # of the rows of an epoch that fill no batch
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_setting_types(recipe: Any) -> None:
    """Fields of a plain type have a value of that type. Raises: ConfigError naming the key."""
    hints = get_type_hints(type(recipe))
    for field in fields(recipe):
        type_, value = hints[field.name], getattr(recipe, field.name)
        if type_ in TYPE_NAMES and not _is(value, type_):
            raise ConfigError(f"dataset.{field.name}={value!r}: needed is {TYPE_NAMES[type_]}")


def check_range(key: str, value: float, low: float, high: float = float("inf")) -> None:
    if not low <= value <= high:
        limit = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ConfigError(f"dataset.{key}={value!r}: needed is {limit}")


def check_choice(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        choices = ", ".join(known)
        raise ConfigError(
            f"dataset.{key}={value!r}: known are {choices}{nearest_hint(value, known)}"
        )


def check_numbers(key: str, values: Mapping[str, Any], known: Collection[str], type_: type) -> None:
    """A mapping with exactly these keys and numbers of a type, none negative."""
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"dataset.{key}.{name}: no such setting{nearest_hint(name, known)}")
        if not _is(value, type_):
            raise ConfigError(f"dataset.{key}.{name}={value!r}: needed is {TYPE_NAMES[type_]}")
        check_range(f"{key}.{name}", value, 0)
    for name in known:
        if name not in values:
            raise ConfigError(f"dataset.{key}.{name} is not set")


def _is(value: Any, type_: type) -> bool:
    if isinstance(value, bool):
        return type_ is bool
    return isinstance(value, (int, float)) if type_ is float else isinstance(value, type_)
