"""Shared parts of the streaming datasets: their schema, checks and polling. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.columns.column_types import direct_columns, id_types
from runner.data.core.columns import Columns, is_list
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


def encoded_types(declared: Declared, known: Mapping[str, str]) -> pa.Schema:
    """Return the type of each column of encoded rows by its declaration, as messages have it.

    Ids are integers, unless the declaration has `input: string` or a separator, or they were
    texts in training. Groups that are not ids are integers. Times, and those by
    which a list is ordered, are texts, to which numbers are converted.

    Args:
        known: column -> `integer`, `unsigned` or `string`, its type in training.
    """
    types: dict[str, pa.DataType] = {}
    for label in declared.labels:
        types[label.column] = pa.string() if label.is_text or label.input else pa.float64()
    for number in declared.numbers:
        vector = pa.string() if number.separator else pa.list_(pa.float64())
        single = pa.string() if number.input else pa.float64()
        types[number.column] = vector if number.size else single
    types |= {declared.weight: pa.float64()} if declared.weight else {}
    for spec in declared.ids:
        for column in spec.cross or (spec.column,):
            type_ = _id_type(spec, known.get(column))
            has_lists = spec.is_list and not spec.separator and not spec.cross
            types.setdefault(column, pa.list_(type_) if has_lists else type_)
        types |= {spec.weights: pa.list_(pa.float64())} if spec.weights else {}
        types |= {spec.order_by: pa.list_(pa.string())} if spec.order_by else {}
    for name in declared.groups:
        types.setdefault(name, pa.int64())
    return pa.schema(types | dict.fromkeys(declared.time_forms, pa.string()))


def _id_type(spec: IdSpec, known: str | None) -> pa.DataType:
    if spec.input in AMOUNT_FORMS:
        return pa.string()
    if spec.encode == "bucketise":
        return pa.float64()
    if spec.separator or "string" in (spec.input, known):
        return pa.string()
    return pa.uint64() if known == "unsigned" else pa.int64()


def fill_empty_types(schema: pa.Schema, types: pa.Schema) -> pa.Schema:
    """Return the types of a file, where a column without any value has the type of its role.

    Args:
        types: column -> the type of its role.
    """

    def fill(field: pa.Field) -> pa.Field:
        values = field.type.value_type if is_list(field.type) else field.type
        is_empty = field.name in types.names and pt.is_null(values)
        return field.with_type(types.field(field.name).type) if is_empty else field

    return pa.schema(list(map(fill, schema)))


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
