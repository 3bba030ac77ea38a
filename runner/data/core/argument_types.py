"""Types of the settings of dataset options, and checks of their values. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from runner.config_key import Key
from runner.config_value import find_field_problems
from runner.errors import ConfigError, nearest_hint, raise_combined

LAST_BATCH_POLICIES = ("short", "drop", "pad")  # for rows of an epoch that do not fill a batch
MAX_ROWS = 2**31  # tables, windows and files must have fewer

WindowRows = Annotated[int, Key(ge=1, lt=MAX_ROWS)]
Prefetch = Annotated[int, Key(ge=0, le=10_000)]
Workers = Annotated[
    int | None,
    Key(
        ge=0,
        le=256,
        note="null: one where the training leaves it a core, else none; for a GPU a process with "
        "up to three",
    ),
]
Rest = Annotated[str, Key(choices=LAST_BATCH_POLICIES)]
Count = Annotated[int, Key(ge=1, lt=MAX_ROWS)]
FromZero = Annotated[int, Key(ge=0, lt=MAX_ROWS)]
Seed = Annotated[int, Key(ge=0, lt=2**63)]
Seconds = Annotated[float, Key(gt=0)]
SecondsOrNone = Annotated[float | None, Key(gt=0, note="null: for ever")]
Few = Annotated[int, Key(ge=0, le=10_000)]  # of columns
Spread = Annotated[float, Key(ge=0)]  # a standard deviation
MeanLength = Annotated[float, Key(ge=0.5, le=10_000)]
Share = Annotated[float, Key(ge=0, le=1)]
DATA_SERVER = r"grpc(\+tls)?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
Locations = Annotated[
    list[str], Key(pattern=DATA_SERVER, note="grpc://HOST:PORT or grpc+tls://HOST:PORT")
]


def check_settings(recipe: Any) -> None:
    """Check the values of all fields by their types, which may be annotated with a `Key`.

    The settings of a job have been checked before, see `runner.config.part_arguments`; those of a
    recipe that code has constructed have not.

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
