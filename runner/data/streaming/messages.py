"""Decodes messages of a topic into rows: each is a JSON object, encoded like a table's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import direct_columns, id_types
from runner.data.columns.encode import encode_chunk
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_list import DataFile
from runner.data.files.mapping_rows import table_of_mappings
from runner.data.files.read_files import RowChunk
from runner.data.read.decode import InMemoryReader, Rows
from runner.data.read.index import BlockIndex
from runner.data.streaming.encoded_files import encoded_columns
from runner.data.streaming.kafka_consumer import Message
from runner.data.streaming.settings import encoded_types, expected_types
from runner.data.tabular.fit import needs_fitting, with_declared_sizes
from runner.errors import ConfigError, DataError


@dataclass(frozen=True)
class MessageDecoder:
    """Converts messages to rows.

    Args:
        topic: for messages about bad ones.
        types: of the values in a message.
        declared: the columns that the encoder of tables makes; None: values are used unchanged.
    """

    topic: str
    columns: Columns
    types: pa.Schema
    declared: Declared | None
    fitted: FittedTransforms

    @cached_property
    def _times(self) -> tuple[str, ...]:
        return tuple(self.declared.time_forms) if self.declared else ()

    @cached_property
    def _order_lists(self) -> tuple[str, ...]:
        return tuple(s.order_by for s in self.declared.ids if s.order_by) if self.declared else ()

    @classmethod
    def of(cls, topic: str, declared: Declared, trained: str | None) -> MessageDecoder:
        """Return the decoder of a topic.

        Args:
            trained: folder with the transforms of a run; None: nothing was fitted.

        Raises:
            ConfigError: for columns with transforms that must be fitted, but are not.
            DataError: for transforms that cannot be read.
        """
        types = expected_types(declared)
        columns = direct_columns(declared, types)
        if columns is not None:
            fitted = FittedTransforms(id_types=id_types(declared, types))
            return cls(topic, columns, types, None, fitted)
        if needs_fitting(declared) and not trained:
            raise ConfigError(
                "dataset.schema: has vocabularies, statistics or sizes that are fitted to data, "
                "which a topic has not yet: dataset.learnt=RUN/data takes those of a run, and "
                "`encode: growing` or `hash` needs none"
            )
        declared = replace(declared, carried=())  # not in batches
        fitted = FittedTransforms.load(Path(trained)) if trained else FittedTransforms()
        fitted = with_declared_sizes(fitted, declared)
        types = encoded_types(declared, fitted.id_types)
        fitted = replace(fitted, id_types=fitted.id_types or id_types(declared, types))
        return cls(topic, encoded_columns(declared, fitted), types, declared, fitted)

    def decode(self, messages: Sequence[Message], first_row: int) -> Rows:
        """Return the rows of messages.

        Args:
            messages: consecutive ones.
            first_row: the number in the stream of the first.

        Raises:
            DataError: naming partition and offset of the first message that is not a row.
        """
        table, count = self._read(messages), len(messages)
        if self.declared is not None:
            chunk = _MessageChunk(DataFile(self.topic), 0, 0, count, table, messages=messages)
            validator = RowValidator.for_chunk(chunk, skip_bad_rows=False)
            table = encode_chunk(chunk, self.declared, self.fitted, validator)
        # Each message is treated as a file with one row, so that errors name the message.
        index = BlockIndex(
            files=cast(Any, messages),
            file_N=np.arange(count),
            group_N=np.zeros(count, np.int64),
            start_N=first_row + np.arange(count),
            rows_N=np.ones(count, np.int64),
        )
        reader = InMemoryReader(index, self.columns, table)
        return reader.read_rows(np.arange(count), slice(0, count))

    def _read(self, messages: Sequence[Message]) -> pa.Table:
        parsed = [self._parse(message) for message in messages]
        try:
            return table_of_mappings(parsed, self.types)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for message, row in zip(messages, parsed):
                self._check_types(message, row)
            raise

    def _parse(self, message: Message) -> dict[str, Any]:
        try:
            row = json.loads(message.value)
        except (ValueError, TypeError) as error:
            raise DataError(f"{message}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{message}: is not a JSON object: {str(row)[:60]}")
        values = dict(_flatten(row))
        for name in self._times:
            if isinstance(values.get(name), int | float):  # times may be numbers or texts
                values[name] = str(values[name])
        for name in self._order_lists:
            if isinstance(values.get(name), list):
                values[name] = [str(x) if isinstance(x, int | float) else x for x in values[name]]
        return values

    def _check_types(self, message: Message, row: Mapping[str, Any]) -> None:
        """Raise an error for the value that Arrow refused.

        Raises:
            DataError: naming message and column.
        """
        for column in self.types:
            try:
                table_of_mappings([row], pa.schema([column]))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                hint = "; texts are declared by `input: string`" if self.declared else ""
                raise DataError(
                    f"{message}, column {column.name!r}: value {row[column.name]!r} is not of type "
                    f"{column.type}{hint}"
                ) from error


def _flatten(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of an object; those of nested objects by names such as `user.id`."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{above}{name}.")
        else:
            yield above + name, value


@dataclass(frozen=True)
class _MessageChunk(RowChunk):
    messages: Sequence[Message] = ()

    def describe_row(self, row: int) -> str:
        return str(self.messages[row])
