"""Checks of a recipe's settings before any work is done; their messages name the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from runner.config_key import find_field_problems
from runner.errors import ConfigError, nearest_hint, raise_combined

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_setting_types(recipe: Any) -> None:
    """Check the values of all fields by their annotations: a plain type, and a `Key`.

    A job has been held against them before, see `runner.config.part_arguments`; a recipe of code
    has not.

    Raises:
        ConfigError: naming the first key with a value of another type, or out of its range.
    """
    hints = get_type_hints(type(recipe))
    for field in fields(recipe):
        type_, value = hints[field.name], getattr(recipe, field.name)
        if type_ in TYPE_NAMES and not _has_type(value, type_):
            raise ConfigError(f"dataset.{field.name}={value!r}: must be {TYPE_NAMES[type_]}")
    raise_combined(find_field_problems(recipe, "dataset."))


def check_range(key: str, value: float, low: float, high: float = float("inf")) -> None:
    """Check that low <= value <= high.

    Raises:
        ConfigError: naming the key and the limits.
    """
    if not low <= value <= high:
        limit = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ConfigError(f"dataset.{key}={value!r}: must be {limit}")


def check_choice(key: str, value: str, known: Collection[str]) -> None:
    """Check that a value is one of those that are known.

    Raises:
        ConfigError: naming the key, all choices and the nearest one.
    """
    if value not in known:
        choices = ", ".join(known)
        raise ConfigError(
            f"dataset.{key}={value!r}: must be one of {choices}{nearest_hint(value, known)}"
        )


def check_numbers(key: str, values: Mapping[str, Any], known: Collection[str], type_: type) -> None:
    """Check that a mapping has exactly the known keys, and non-negative numbers of a type.

    Raises:
        ConfigError: naming the first key that is unknown, has a wrong value, or is missing.
    """
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"dataset.{key}.{name}: no such setting{nearest_hint(name, known)}")
        if not _has_type(value, type_):
            raise ConfigError(f"dataset.{key}.{name}={value!r}: must be {TYPE_NAMES[type_]}")
        check_range(f"{key}.{name}", value, 0)
    for name in known:
        if name not in values:
            raise ConfigError(f"dataset.{key}.{name} is not set")


def _has_type(value: Any, type_: type) -> bool:
    if isinstance(value, bool):
        return type_ is bool
    return isinstance(value, (int, float)) if type_ is float else isinstance(value, type_)
