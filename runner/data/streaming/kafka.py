"""A Kafka topic as a stream: each message is a JSON object that holds a row.

The partitions take turns, one message each, in the order of their numbers: message n of partition p
of P is row n * P + p. So the order is a function of the topic alone, whatever arrives first. A
position has an offset for each partition; checkpoints keep it, and nothing is committed to the
broker. The price is that the stream waits for a partition that has its turn and no message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, overload

import numpy as np
import pyarrow as pa

from runner.config_key import Key
from runner.data.core.argument_types import SecondsOrNone
from runner.data.core.columns import Columns, check_columns
from runner.data.core.setting_checks import check_setting_types
from runner.data.read.decode import InMemoryReader, Rows
from runner.data.read.index import BlockIndex
from runner.data.streaming.kafka_consumer import (
    CHUNK_ROWS,
    POLL_S,
    RESERVED_SETTINGS,
    Message,
    RoundRobinConsumer,
)
from runner.data.streaming.settings import (
    Poller,
    declaration_identity,
    expected_types,
    load_declaration,
    plain_transforms,
    stream_columns,
)
from runner.data.tabular.column_specs import Declared
from runner.errors import ConfigError, DataError
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.streaming.dataset import StreamChunk, StreamDataset, StreamPosition


@dataclass(frozen=True)
class TopicRecipe:
    """The settings of `dataset=kafka`, documented in conf/dataset/kafka.yaml."""

    servers: str
    topic: str | None
    schema: Any
    begin: Annotated[str, Key(choices=("earliest", "latest"))]
    idle_timeout_s: SecondsOrNone
    client: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def declared(self) -> Declared:
        return load_declaration(self.schema)

    @property
    def columns(self) -> Columns:
        return stream_columns(self.declared)

    def check(self) -> None:
        if not self.topic:
            raise ConfigError("dataset.topic is not set: the Kafka topic to train on")
        check_setting_types(self)
        for key in self.client or ():
            if key in RESERVED_SETTINGS or key == "bootstrap.servers":
                raise ConfigError(f"dataset.client.{key}: is reserved; the runner sets it itself")
        assert self.columns

    def content_fields(self) -> Mapping[str, Any]:
        return {
            "stream": "kafka",
            "topic": self.topic,
            "declared": declaration_identity(self.declared),
        }

    def reading_fields(self) -> Mapping[str, Any]:
        return {"begin": self.begin}


recipe = TopicRecipe


@dataset_option
def kafka(**settings: Any) -> StreamDataset:
    """Return the dataset of the option `kafka`.

    Raises:
        ConfigError: for a wrong setting, or without the package of the client.
    """
    from runner.data.streaming.dataset import StreamDataset  # imports torch

    topic_recipe = recipe(**settings)
    topic_recipe.check()
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "dataset=kafka: needs the package confluent-kafka: pip install 'runner[kafka]'"
        ) from error
    plain = plain_transforms(topic_recipe.declared)
    return StreamDataset(TopicSource(topic_recipe), topic_recipe.columns, plain)


class TopicSource:
    """Yields the messages of all partitions in turn.

    A position has the `offsets` of each partition's next message.
    """

    def __init__(self, settings: TopicRecipe) -> None:
        self._settings = settings
        self._columns = settings.columns
        self._types = expected_types(settings.declared)
        check_columns(self._columns, self._types, f"topic {settings.topic}")

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """Yield the rows from a position on, see `StreamSource.read_chunks`.

        Raises:
            DataError: for a broker that does not answer, a topic that is not there, offsets that
                are gone, and messages that are no rows.
        """
        from runner.data.streaming.dataset import StreamChunk

        settings = self._settings
        with RoundRobinConsumer(
            settings.servers,
            str(settings.topic),
            client_settings=settings.client or {},
            begin=settings.begin,
            offsets=None if position is None else position["offsets"],
            first_row=first_row,
        ) as consumer:
            poller = Poller(POLL_S, settings.idle_timeout_s, should_stop)
            while True:
                messages = consumer.take(CHUNK_ROWS)
                if not messages:
                    partition = consumer.next_partition
                    poller.wait(f"message in partition {partition} of {settings.topic}")
                    continue
                poller.reset()
                rows = self._decode(messages, first_row)
                yield StreamChunk(
                    rows, _positions_in_chunk(messages, consumer.offsets_before(messages))
                )
                first_row += len(messages)

    def _decode(self, messages: Sequence[Message], first_row: int) -> Rows:
        parsed = [self._parse(message) for message in messages]
        try:
            table = pa.Table.from_pylist(parsed, schema=self._types)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for message, row in zip(messages, parsed):
                self._check_types(message, row)
            raise
        count = len(messages)
        # Each message stands as a file with one block of one row, so that errors name the message.
        index = BlockIndex(
            files=cast(Any, _MessagePaths(str(self._settings.topic), messages)),
            file_N=np.arange(count),
            group_N=np.zeros(count, np.int64),
            start_N=first_row + np.arange(count),
            rows_N=np.ones(count, np.int64),
        )
        reader = InMemoryReader(index, self._columns, table)
        return reader.read_rows(np.arange(count), slice(0, count))

    def _parse(self, message: Message) -> dict[str, Any]:
        where = message.describe(str(self._settings.topic))
        try:
            row = json.loads(message.value)
        except (ValueError, TypeError) as error:
            raise DataError(f"{where}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: is not a JSON object: {str(row)[:60]}")
        return row

    def _check_types(self, message: Message, row: Mapping[str, Any]) -> None:
        """Find the value that Arrow refused.

        Raises:
            DataError: naming message and column.
        """
        where = message.describe(str(self._settings.topic))
        for column in self._types:
            try:
                pa.array([row.get(column.name)], column.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise DataError(
                    f"{where}, column {column.name!r}: value {row[column.name]!r} is not of type "
                    f"{column.type}"
                ) from error


def _positions_in_chunk(
    messages: Sequence[Message], offsets_before: Mapping[int, int]
) -> Callable[[int], StreamPosition]:
    def position_after(count: int) -> StreamPosition:
        after = {**offsets_before, **{m.partition: m.offset + 1 for m in messages[:count]}}
        return {"offsets": {str(partition): offset for partition, offset in after.items()}}

    return position_after


@dataclass(frozen=True)
class _MessagePaths(Sequence[Path]):
    """Descriptions of messages in place of files' paths, made only for an error's text."""

    topic: str
    messages: Sequence[Message]

    @overload
    def __getitem__(self, number: int) -> Path: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Path]: ...
    def __getitem__(self, number: int | slice) -> Path | Sequence[Path]:
        if isinstance(number, slice):
            return [Path(m.describe(self.topic)) for m in self.messages[number]]
        return Path(self.messages[number].describe(self.topic))

    def __len__(self) -> int:
        return len(self.messages)
