"""What the streams' settings have in common. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from runner.data.core.columns import Columns
from runner.data.core.dataset import EndOfStream
from runner.data.tabular.column_types import direct_columns
from runner.data.tabular.schema_file import Declared
from runner.data.tabular.table import TableRecipe
from runner.errors import ConfigError

SIGNAL_CHECK_S = 0.1  # how soon a signal is heard while the stream waits


def load_declaration(schema: Any) -> Declared:
    """The columns of a YAML or its content. Raises: ConfigError."""
    return TableRecipe(format="parquet", path=None, schema=schema).declared


def stream_columns(declared: Declared) -> Columns:
    """Columns of rows that are used as they come.

    Raises: ConfigError for what would have to be learnt from the whole data first.
    """
    columns = direct_columns(declared, expected_types(declared))
    if columns is None:
        raise ConfigError(
            "dataset.schema: a stream's columns are read as they come: numbers, and integers "
            "`as_is` or by `hash` with num_rows, under their own names. Vocabularies, standardise, "
            "learnt buckets, crosses, separators and sequences need all rows first"
        )
    return columns


def expected_types(declared: Declared) -> pa.Schema:
    """What the declaration makes of each column, where there is no file to look at."""
    types: dict[str, pa.DataType] = {}
    numbers = [s.column for s in declared.labels] + [s.column for s in declared.numeric]
    types |= dict.fromkeys(numbers, pa.float64())
    types |= {declared.weight: pa.float64()} if declared.weight else {}
    for name in declared.groups:
        types[name] = pa.int64()
    for spec in declared.ids:
        types[spec.column] = pa.list_(pa.int64()) if spec.is_list else pa.int64()
    return pa.schema(types)


def declaration_identity(declared: Declared) -> str:
    """Of the declaration, wherever the data lies."""
    return repr(replace(declared, places={}))


def check_seconds(key: str, value: float | None, *, may_be_null: bool = False) -> None:
    if value is None and may_be_null:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        null = ", or null for ever" if may_be_null else ""
        raise ConfigError(f"dataset.{key}={value}: needed is a number of seconds above 0{null}")


class Poller:
    """Waits in short naps for something to come."""

    def __init__(
        self, poll_s: float, idle_timeout_s: float | None, should_stop: Callable[[], bool]
    ) -> None:
        self._poll_s, self._limit_s, self._stopped = poll_s, idle_timeout_s, should_stop
        self.reset()

    def reset(self) -> None:
        """Something came."""
        self._since_s = time.monotonic()

    def wait(self, awaited: str) -> None:
        """One look's pause. Raises: EndOfStream when it has been in vain for too long, or stopped.

        awaited: is waited for.
        """
        until_s = time.monotonic() + self._poll_s
        while True:
            if self._stopped():
                raise EndOfStream("stopped")
            if self._limit_s is not None and time.monotonic() - self._since_s > self._limit_s:
                raise EndOfStream(f"no {awaited} for {self._limit_s:g} s")
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, SIGNAL_CHECK_S))
