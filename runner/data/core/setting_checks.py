"""Checks of a recipe's settings before any work is done; their messages name the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from runner.config_value import find_field_problems
from runner.errors import ConfigError, nearest_hint, raise_combined


def check_settings(recipe: Any) -> None:
    """Check the values of all fields by their types, which may be annotated with a `Key`.

    A job has been held against them before, see `runner.config.part_arguments`; a recipe of code
    has not.

    Raises:
        ConfigError: naming each key with a value of another type, or out of its range.
    """
    raise_combined(find_field_problems(recipe, "dataset."))


def check_names(key: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    """Check that a mapping has exactly the known keys.

    Raises:
        ConfigError: naming the first key that is unknown or missing.
    """
    for name in values:
        if name not in known:
            raise ConfigError(f"dataset.{key}.{name}: no such setting{nearest_hint(name, known)}")
    for name in known:
        if name not in values:
            raise ConfigError(f"dataset.{key}.{name} is not set")
