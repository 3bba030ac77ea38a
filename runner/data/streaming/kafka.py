"""A Kafka topic as a stream: a JSON object a message is a row.

The partitions take turns, a message each, in the order of their numbers: message n of partition p
is row n * P + p. So the order is a function of the topic alone, whatever arrives first, and a
position is an offset for each partition, which the checkpoint keeps; nothing is committed to the
broker. The price: a partition without messages holds the stream up, as long as its turn lasts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import pyarrow as pa

from runner.data.core.columns import Columns, check_columns
from runner.data.core.setting_checks import check_choice
from runner.data.read.decode import BlockReader
from runner.data.read.index import BlockIndex
from runner.data.streaming.settings import (
    Poller,
    check_seconds,
    declaration_identity,
    expected_types,
    load_declaration,
    stream_columns,
)
from runner.data.tabular.schema_file import Declared
from runner.errors import ConfigError, DataError

if TYPE_CHECKING:
    from runner.data.streaming.dataset import StreamChunk, StreamDataset, StreamPosition

POLL_S = 0.1
CHUNK_ROWS = 1024  # made into columns together, at most
MAX_BUFFERED_MESSAGES = 10_000  # messages of a partition that are held before its turn
CONNECT_TIMEOUT_S = 30.0
RESERVED_SETTINGS = {  # the checkpoint has the position, and an offset that is gone must not be passed over
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": False,
    "group.id": "runner",
}


@dataclass(frozen=True)
class TopicRecipe:
    """Settings; see conf/dataset/kafka.yaml."""

    servers: str
    topic: str | None
    schema: Any
    begin: str
    idle_timeout_s: float | None
    client: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def declared(self) -> Declared:
        return load_declaration(self.schema)

    @property
    def columns(self) -> Columns:
        return stream_columns(self.declared)

    def check(self) -> None:
        if not self.topic:
            raise ConfigError("dataset.topic is not set: the Kafka topic to learn from")
        check_choice("begin", self.begin, ("earliest", "latest"))
        check_seconds("idle_timeout_s", self.idle_timeout_s, may_be_null=True)
        for key in self.client or ():
            if key in RESERVED_SETTINGS or key == "bootstrap.servers":
                raise ConfigError(f"dataset.client.{key}: is the runner's to set")
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


def kafka(**settings: Any) -> StreamDataset:
    """The dataset option `kafka`. Raises: ConfigError without the client's package."""
    from runner.data.streaming.dataset import StreamDataset  # torch enters here

    made_of = recipe(**settings)
    made_of.check()
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "dataset=kafka: needs the package confluent-kafka: pip install 'runner[kafka]'"
        ) from error
    return StreamDataset(TopicSource(made_of), made_of.columns)


class TopicSource:
    """Messages of all partitions in turn. Place: `offsets`, of the next message of each."""

    def __init__(self, settings: TopicRecipe) -> None:
        self._settings = settings
        self._columns = settings.columns
        self._types = expected_types(settings.declared)
        check_columns(self._columns, self._types, f"topic {settings.topic}")

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """See `Source.chunks`. Raises: DataError for a broker that does not answer, a topic that is
        not there, offsets that are gone, and messages that are no rows."""
        from runner.data.streaming.dataset import StreamChunk

        settings = self._settings
        with RoundRobinConsumer(
            settings, None if position is None else position["offsets"], first_row
        ) as turns:
            wait = Poller(POLL_S, settings.idle_timeout_s, should_stop)
            while True:
                messages = turns.take(CHUNK_ROWS)
                if not messages:
                    partition = turns.next_partition
                    wait.wait(f"message in partition {partition} of {settings.topic}")
                    continue
                wait.reset()
                rows = self._rows(messages, first_row)
                yield StreamChunk(rows, _place_after(messages, turns.offsets_before(messages)))
                first_row += len(messages)

    def _rows(self, messages: Sequence[Message], first_row: int) -> Any:
        given = [self._parsed(message) for message in messages]
        try:
            table = pa.Table.from_pylist(given, schema=self._types)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for message, row in zip(messages, given):
                self._check(message, row)
            raise
        count = len(messages)
        index = BlockIndex(
            files=cast(Any, _Places(str(self._settings.topic), messages)),
            file_N=np.arange(count),
            group_N=np.zeros(count, np.int64),
            start_N=first_row + np.arange(count),
            rows_N=np.ones(count, np.int64),
        )
        return _Given(index, self._columns, table).read_rows(np.arange(count), slice(0, count))

    def _parsed(self, message: Message) -> dict[str, Any]:
        where = message.describe(str(self._settings.topic))
        try:
            row = json.loads(message.value)
        except (ValueError, TypeError) as error:
            raise DataError(f"{where}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: is no JSON object: {str(row)[:60]}")
        return row

    def _check(self, message: Message, row: Mapping[str, Any]) -> None:
        where = message.describe(str(self._settings.topic))
        for column in self._types:
            try:
                pa.array([row.get(column.name)], column.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise DataError(
                    f"{where}, column {column.name!r}: value {row[column.name]!r} is no "
                    f"{column.type}"
                ) from error


@dataclass(frozen=True)
class Message:
    partition: int
    offset: int
    value: bytes

    def describe(self, topic: str) -> str:
        return f"topic {topic}, partition {self.partition}, offset {self.offset}"


class RoundRobinConsumer:
    """A consumer of all partitions of a topic that hands their messages out in turn."""

    def __init__(
        self, settings: TopicRecipe, offsets: Mapping[str, int] | None, first_row: int
    ) -> None:
        """offsets: of the next message of each partition; None: as the settings say."""
        import confluent_kafka as ck

        self._ck, self._topic = ck, str(settings.topic)
        self._errors: list[str] = []
        options = {
            "bootstrap.servers": settings.servers,
            **(settings.client or {}),
            **RESERVED_SETTINGS,
        }
        self._consumer = ck.Consumer(
            {**options, "error_cb": lambda error: self._errors.append(str(error))}
        )
        try:
            self._next = self._begin(settings, offsets)
        except BaseException:
            self._consumer.close()
            raise
        self._num = len(self._next)
        self._waiting: list[deque[Message]] = [deque() for _ in range(self._num)]
        self._paused: set[int] = set()
        self.next_partition = first_row % self._num

    def __enter__(self) -> RoundRobinConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _begin(self, settings: TopicRecipe, offsets: Mapping[str, int] | None) -> dict[int, int]:
        ck = self._ck
        try:
            listed = self._consumer.list_topics(self._topic, timeout=CONNECT_TIMEOUT_S)
        except ck.KafkaException as error:
            told = self._errors[-1] if self._errors else str(error)
            raise DataError(f"dataset.servers={settings.servers}: no answer: {told}") from error
        found = listed.topics[self._topic]
        if found.error is not None or not found.partitions:
            raise DataError(f"dataset.topic={self._topic}: {found.error or 'has no partition'}")
        partitions = sorted(found.partitions)
        if offsets is None:
            limits = {p: self._limits(p) for p in partitions}
            which = 0 if settings.begin == "earliest" else 1
            starts = {p: limits[p][which] for p in partitions}
        else:
            starts = {int(p): int(o) for p, o in offsets.items()}
        if sorted(starts) != partitions:
            raise DataError(
                f"topic {self._topic}: has {len(partitions)} partitions, and had {len(starts)} "
                "before: their turns are part of the order"
            )
        for partition, start in starts.items() if offsets is not None else ():
            low, high = self._limits(partition)
            if not low <= start <= high:
                raise DataError(
                    f"topic {self._topic}, partition {partition}: holds the offsets {low} to "
                    f"{high - 1}, and the run goes on at {start}: messages are lost"
                )
        self._consumer.assign([ck.TopicPartition(self._topic, p, o) for p, o in starts.items()])
        return starts

    def _limits(self, partition: int) -> tuple[int, int]:
        where = self._ck.TopicPartition(self._topic, partition)
        return self._consumer.get_watermark_offsets(where, timeout=CONNECT_TIMEOUT_S)

    def take(self, most: int) -> list[Message]:
        """The next messages in turn, as many as have come, at most so many."""
        self._fetch()
        taken: list[Message] = []
        while len(taken) < most and self._waiting[self.next_partition]:
            message = self._waiting[self.next_partition].popleft()
            taken.append(message)
            self._next[self.next_partition] = message.offset + 1
            self.next_partition = (self.next_partition + 1) % self._num
        for partition in list(self._paused):
            if len(self._waiting[partition]) < MAX_BUFFERED_MESSAGES // 2:
                self._consumer.resume([self._ck.TopicPartition(self._topic, partition)])
                self._paused.discard(partition)
        return taken

    def _fetch(self) -> None:
        enough = len(self._waiting[self.next_partition]) >= CHUNK_ROWS
        for got in self._consumer.consume(CHUNK_ROWS, timeout=0.0 if enough else POLL_S):
            if (error := got.error()) is not None:
                raise DataError(f"topic {self._topic}: {error.str()}")
            partition, offset = cast(int, got.partition()), cast(int, got.offset())
            value = cast(bytes, got.value() or b"")
            self._waiting[partition].append(Message(partition, offset, value))
            if (
                len(self._waiting[partition]) >= MAX_BUFFERED_MESSAGES
                and partition not in self._paused
            ):
                self._consumer.pause([self._ck.TopicPartition(self._topic, partition)])
                self._paused.add(partition)

    def offsets_before(self, messages: Sequence[Message]) -> dict[int, int]:
        """Of the next message of each partition, before these were taken."""
        return self._next | {m.partition: m.offset for m in reversed(messages)}


def _place_after(
    messages: Sequence[Message], before: Mapping[int, int]
) -> Callable[[int], StreamPosition]:
    def place(count: int) -> StreamPosition:
        after = {**before, **{m.partition: m.offset + 1 for m in messages[:count]}}
        return {"offsets": {str(partition): offset for partition, offset in after.items()}}

    return place


class _Given(BlockReader):
    """A reader of rows that are in memory already."""

    def __init__(self, index: BlockIndex, columns: Columns, table: pa.Table) -> None:
        super().__init__(index, columns)
        self._table = table

    def read_table(self, blocks: np.ndarray, names: Any) -> pa.Table:
        return self._table.select(list(names))


@dataclass(frozen=True)
class _Places(Sequence[Path]):
    """Where each message came from, said only when something is wrong with one."""

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
