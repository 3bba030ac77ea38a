"""Shared parts of the streaming datasets: their schema, checks and polling. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import direct_columns, id_types
from runner.data.core.columns import Columns
from runner.data.core.dataset import EndOfStream
from runner.data.core.fitted import FittedTransforms
from runner.data.tabular.table_recipe import TableRecipe

SIGNAL_CHECK_S = 0.1  # how often a wait looks for a signal


def load_declaration(schema: Any) -> Declared:
    """Parse `dataset.schema`: the path of a YAML file, or its content.

    Raises:
        ConfigError: naming the mistakes in it.
    """
    return TableRecipe(format="parquet", path=None, schema=schema).declared


def plain_columns(declared: Declared) -> Columns | None:
    """Return the columns of a stream that are read unchanged; None if they are encoded."""
    return direct_columns(declared, expected_types(declared))


def expected_types(declared: Declared) -> pa.Schema:
    """Return the type of each column by its declaration, without a file."""
    numbers = [s.column for s in declared.labels] + [s.column for s in declared.numbers]
    numbers += [declared.weight] if declared.weight else []
    types: dict[str, pa.DataType] = dict.fromkeys(numbers, pa.float64())
    types |= dict.fromkeys(declared.groups, pa.int64())
    for spec in declared.ids:
        types[spec.column] = pa.list_(pa.int64()) if spec.is_list else pa.int64()
    return pa.schema(types)


def plain_transforms(declared: Declared) -> FittedTransforms:
    """Return the transforms of columns that are read unchanged: nothing is fitted."""
    return FittedTransforms(id_types=id_types(declared, expected_types(declared)))


def declaration_identity(declared: Declared) -> str:
    """Return a text that identifies the declaration, independent of the data's location."""
    return repr(replace(declared, places={}))


class Poller:
    """Waits between polls of a source, up to a time limit without new data."""

    def __init__(
        self, poll_s: float, idle_timeout_s: float | None, should_stop: Callable[[], bool]
    ) -> None:
        self._poll_s, self._limit_s, self._should_stop = poll_s, idle_timeout_s, should_stop
        self.reset()

    def reset(self) -> None:
        """Restart the time limit, since data has arrived."""
        self._idle_since_s = time.monotonic()

    def wait(self, awaited: str) -> None:
        """Sleep until the next poll.

        Args:
            awaited: the expected data, for the message.

        Raises:
            EndOfStream: if nothing has arrived for too long, or the run is to stop.
        """
        until_s = time.monotonic() + self._poll_s
        while True:
            if self._should_stop():
                raise EndOfStream("stopped")
            if self._limit_s is not None and time.monotonic() - self._idle_since_s > self._limit_s:
                raise EndOfStream(f"no {awaited} for {self._limit_s:g} s")
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, SIGNAL_CHECK_S))
