"""A Kafka consumer that returns the messages of a topic's partitions in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runner.errors import DataError

POLL_S = 0.1
CHUNK_ROWS = 1024  # maximum number of messages in a chunk
MAX_BUFFERED_MESSAGES = 10_000  # of a partition that waits for its turn
CONNECT_TIMEOUT_S = 30.0
# The checkpoint has the position, and an expired offset must not be skipped.
RESERVED_SETTINGS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": False,
    "group.id": "runner",
}
# A configuration may be untrusted, and these let the client load machine code or run a shell.
CODE_SETTINGS = (
    *("plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl.providers"),
    "sasl.kerberos.kinit.cmd",
)
# Placeholders that the client inserts into a shell command
SHELL_PREFIX, SHELL_WORD = "sasl.kerberos.", r"[A-Za-z0-9_@./:-]*"


@dataclass(frozen=True)
class Message:
    """A message of the topic."""

    partition: int
    offset: int
    value: bytes
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


class RoundRobinConsumer:
    """Consumes all partitions of a topic and returns their messages in turn.

    Args:
        servers: addresses of the broker.
        begin: `earliest` or `latest`, the position if `offsets` is not given.
        offsets: of each partition's next message.
        first_row: number of rows of the stream before that position.

    Raises:
        DataError: if the broker does not answer, the topic does not exist, or offsets have expired.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        client_settings: Mapping[str, Any],
        begin: str,
        offsets: Mapping[str, int] | None,
        first_row: int,
    ) -> None:
        import confluent_kafka as ck

        self._ck, self._servers, self._topic = ck, servers, topic
        self._errors: list[str] = []
        options = {"bootstrap.servers": servers, **client_settings, **RESERVED_SETTINGS}
        self._consumer = ck.Consumer(
            {**options, "error_cb": lambda error: self._errors.append(str(error))}
        )
        try:
            self._next_offsets = self._assign(begin, offsets)
        except BaseException:
            self._consumer.close()
            raise
        self._num_partitions = len(self._next_offsets)
        self._waiting: list[deque[Message]] = [deque() for _ in range(self._num_partitions)]
        self._paused: set[int] = set()
        self.next_partition = first_row % self._num_partitions

    def __enter__(self) -> RoundRobinConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _assign(self, begin: str, offsets: Mapping[str, int] | None) -> dict[int, int]:
        """Subscribe to all partitions; return the offset at which each one starts.

        Raises:
            DataError: if the partitions or their offsets do not match `offsets`.
        """
        partitions = self._list_partitions()
        if offsets is None:
            limit = 0 if begin == "earliest" else 1
            starts = {p: self._offset_limits(p)[limit] for p in partitions}
        else:
            starts = {int(p): int(o) for p, o in offsets.items()}
        if sorted(starts) != partitions:
            raise DataError(
                f"topic {self._topic}: has {len(partitions)} partitions, and had {len(starts)} "
                "before: their turns are part of the order; begin a new run, to which "
                "checkpoint.init_from=RUN gives the weights of this one"
            )
        for partition, start in starts.items() if offsets is not None else ():
            low, high = self._offset_limits(partition)
            if not low <= start <= high:
                raise DataError(
                    f"topic {self._topic}, partition {partition}: holds the offsets {low} to "
                    f"{high - 1}, and the run continues at {start}: messages are lost; begin "
                    "a new run, to which checkpoint.init_from=RUN gives the weights of this one"
                )
        at_starts = [self._ck.TopicPartition(self._topic, p, o) for p, o in starts.items()]
        self._consumer.assign(at_starts)
        return starts

    def _list_partitions(self) -> list[int]:
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=CONNECT_TIMEOUT_S)
        except self._ck.KafkaException as error:
            reason = self._errors[-1] if self._errors else str(error)
            raise DataError(f"dataset.servers={self._servers}: no answer: {reason}") from error
        topic = metadata.topics[self._topic]
        if topic.error is not None or not topic.partitions:
            raise DataError(f"dataset.topic={self._topic}: {topic.error or 'has no partition'}")
        return sorted(topic.partitions)

    def _offset_limits(self, partition: int) -> tuple[int, int]:
        """Return the offset of a partition's oldest message, and the one after its newest."""
        where = self._ck.TopicPartition(self._topic, partition)
        return self._consumer.get_watermark_offsets(where, timeout=CONNECT_TIMEOUT_S)

    def take(self, max_messages: int) -> list[Message]:
        """Return the next messages in turn, as many as have arrived, at most `max_messages`."""
        self._fetch()
        consumed: list[Message] = []
        while len(consumed) < max_messages and self._waiting[self.next_partition]:
            message = self._waiting[self.next_partition].popleft()
            consumed.append(message)
            self._next_offsets[self.next_partition] = message.offset + 1
            self.next_partition = (self.next_partition + 1) % self._num_partitions
        for partition in list(self._paused):
            if len(self._waiting[partition]) < MAX_BUFFERED_MESSAGES // 2:
                self._consumer.resume([self._ck.TopicPartition(self._topic, partition)])
                self._paused.discard(partition)
        return consumed

    def _fetch(self) -> None:
        has_enough = len(self._waiting[self.next_partition]) >= CHUNK_ROWS
        for received in self._consumer.consume(CHUNK_ROWS, timeout=0.0 if has_enough else POLL_S):
            if (error := received.error()) is not None:
                raise DataError(f"topic {self._topic}: {error.str()}")
            partition, offset = cast(int, received.partition()), cast(int, received.offset())
            message = Message(partition, offset, received.value() or b"", self._topic)
            self._waiting[partition].append(message)
            if (
                len(self._waiting[partition]) >= MAX_BUFFERED_MESSAGES
                and partition not in self._paused
            ):
                self._consumer.pause([self._ck.TopicPartition(self._topic, partition)])
                self._paused.add(partition)

    def offsets_before(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return the offset of each partition's next message before `messages` were taken."""
        return self._next_offsets | {m.partition: m.offset for m in reversed(messages)}
