"""`model.net.embedding_dim`: a width for all tables, `auto`, or widths by patterns of names.

    embedding_dim: 16
    embedding_dim: auto
    embedding_dim: {default: 16, user*: 32, city: auto}

`auto` is 6 times the fourth root of a table's rows, as in Wang et al. 2017 (Deep & Cross Network,
arXiv:1708.05123, section 4.1), rounded up to a multiple of 4, which kernels store without padding,
and at most `MAX_AUTO_WIDTH`. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from runner.config_value import number_hint
from runner.errors import ConfigError, nearest_hint

WIDTHS_KEY = "model.net.embedding_dim"
AUTO, DEFAULT = "auto", "default"
MAX_AUTO_WIDTH = 64
MAX_WIDTH = 65536  # as of a layer
TableWidths = int | Mapping[str, int]  # of all tables, or by table, for models that take both


def auto_width(num_rows: int) -> int:
    """Return the width that `auto` gives to a table."""
    return min(MAX_AUTO_WIDTH, 4 * math.ceil(6 * math.sqrt(math.sqrt(num_rows)) / 4))


def check_widths(value: Any, key: str = WIDTHS_KEY) -> None:
    """Check the setting, without knowing the tables.

    Raises:
        ConfigError: with the key and the rule.
    """
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"{key}={{}}: names no table; write {{default: 16, PATTERN: 32}}")
        for name, width in value.items():
            if isinstance(width, Mapping):
                raise ConfigError(f"{key}.{name}: must be a whole number from 1, or {AUTO}")
            check_widths(width, f"{key}.{name}")
    elif value != AUTO and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        hint = nearest_hint(value, [AUTO]) if isinstance(value, str) else ""
        hint = number_hint(value) or hint
        shown = "null" if value is None else value
        raise ConfigError(f"{key}={shown}: must be a whole number from 1, or {AUTO}{hint}")
    elif value != AUTO and value > MAX_WIDTH:
        raise ConfigError(f"{key}={value}: must be at most {MAX_WIDTH}, or {AUTO}")


def resolve_widths(value: Any, num_rows: Mapping[str, int]) -> dict[str, int]:
    """Return the width of every table.

    Args:
        value: the setting, checked. The first pattern that matches a table's name counts; `default`
            is for tables that none matches.
        num_rows: by table.

    Raises:
        ConfigError: for a pattern that matches no table, and a table without a width.
    """
    if not isinstance(value, Mapping):
        value = {DEFAULT: value}
    patterns = [name for name in value if name != DEFAULT]
    for pattern in patterns:
        if not any(fnmatchcase(table, pattern) for table in num_rows):
            raise ConfigError(
                f"{WIDTHS_KEY}.{pattern}: fits no table"
                f"{nearest_hint(pattern, [DEFAULT, *num_rows])}"
            )
    widths = {}
    for table, rows in num_rows.items():
        key = next((p for p in patterns if fnmatchcase(table, p)), DEFAULT)
        if key not in value:
            raise ConfigError(f"{WIDTHS_KEY}: table {table} has none; give a {DEFAULT}")
        widths[table] = auto_width(rows) if value[key] == AUTO else value[key]
    return widths


def one_width(value: Any, num_rows: Mapping[str, int], model: str) -> int:
    """Return the width of all tables, for a model that supports only one width.

    `auto` is the mean of the tables' widths, rounded up to a multiple of 4.

    Raises:
        ConfigError: for widths that differ.
    """
    widths = resolve_widths(value, num_rows).values()
    if value == AUTO:
        return 4 * math.ceil(sum(widths) / len(widths) / 4)
    if len(set(widths)) > 1:
        raise ConfigError(
            f"{WIDTHS_KEY}: {model} takes one width for all tables, since it multiplies or adds "
            "vectors of different features; models that put them side by side (mlp without "
            "sequences, dcn, wide_and_deep, mmoe, ple) take several"
        )
    return next(iter(widths))
