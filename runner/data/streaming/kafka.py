"""A Kafka topic as a stream: each message is a JSON object with one row.

The partitions take turns, one message each, in the order of their numbers: message n of partition p
of P is row n * P + p. So the order is a function of the topic alone, whichever arrives first. A
position has an offset for each partition; checkpoints keep it, and nothing is committed to the
broker. The price is that the stream waits for a partition that has its turn but no message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from runner.config_key import Key
from runner.data.columns.column_specs import Declared
from runner.data.core.argument_types import SecondsOrNone, check_settings
from runner.data.core.columns import Columns, check_columns
from runner.data.core.fitted import FittedTransforms
from runner.data.streaming.kafka_consumer import (
    CHUNK_ROWS,
    CODE_SETTINGS,
    POLL_S,
    RESERVED_SETTINGS,
    SHELL_PREFIX,
    SHELL_WORD,
    Message,
    RoundRobinConsumer,
)
from runner.data.streaming.messages import MessageDecoder
from runner.data.streaming.settings import Poller, declaration_identity, load_declaration
from runner.data.tabular.fit import needs_fitting
from runner.errors import ConfigError, raise_combined
from runner.machine.imports import missing_extra
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
    learnt: str | None = None  # folder with a run's fitted transforms, which are used unchanged

    @cached_property
    def declared(self) -> Declared:
        return load_declaration(self.schema)

    @cached_property
    def decoder(self) -> MessageDecoder:
        return MessageDecoder.of(str(self.topic), self.declared, self.learnt)

    @property
    def columns(self) -> Columns:
        return self.decoder.columns

    def check(self) -> None:
        if not self.topic:
            raise ConfigError("dataset.topic is not set: the Kafka topic to train on")
        check_settings(self)
        for key, value in (self.client or {}).items():
            if key in RESERVED_SETTINGS or key == "bootstrap.servers":
                raise ConfigError(f"dataset.client.{key}: is reserved; the runner sets it itself")
            is_shell = key.startswith(SHELL_PREFIX) and not re.fullmatch(SHELL_WORD, str(value))
            if key in CODE_SETTINGS or is_shell:
                raise ConfigError(
                    f"dataset.client.{key}: is refused, since a configuration may not name code "
                    "that the client runs"
                )
        assert self.columns

    def content_fields(self) -> Mapping[str, Any]:
        fields = {"stream": "kafka", "topic": self.topic}
        fields["declared"] = declaration_identity(self.declared)
        if self.learnt and needs_fitting(self.declared):
            fields["learnt"] = FittedTransforms.load(Path(self.learnt)).digest()
        return fields

    def reading_fields(self) -> Mapping[str, Any]:
        return {"begin": self.begin}


recipe = TopicRecipe


@dataset_option
def kafka(**settings: Any) -> StreamDataset:
    """Return the dataset of the option `kafka`.

    Raises:
        ConfigError: for a wrong setting, or if the client's package is not installed.
    """
    from runner.data.streaming.dataset import StreamDataset  # imports torch

    topic_recipe = recipe(**settings)
    topic_recipe.check()
    raise_combined(missing_extra("dataset=kafka", "kafka", "confluent_kafka"))
    decoder = topic_recipe.decoder
    return StreamDataset(TopicSource(topic_recipe), decoder.columns, decoder.fitted)


class TopicSource:
    """Yields the messages of all partitions in turn.

    A position has the `offsets` of each partition's next message.
    """

    def __init__(self, settings: TopicRecipe) -> None:
        self._settings, self._decoder = settings, settings.decoder
        if self._decoder.declared is None:  # otherwise the encoder checks the values
            check_columns(self._decoder.columns, self._decoder.types, f"topic {settings.topic}")

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """Yield the rows from a position on, see `StreamSource.read_chunks`.

        Raises:
            DataError: if the broker does not answer, the topic is missing, offsets have expired,
                or a message is not a row.
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
                rows = self._decoder.decode(messages, first_row)
                before = consumer.offsets_before(messages)
                yield StreamChunk(rows, _positions_in_chunk(messages, before))
                first_row += len(messages)


def _positions_in_chunk(
    messages: Sequence[Message], offsets_before: Mapping[int, int]
) -> Callable[[int], StreamPosition]:
    def position_after(count: int) -> StreamPosition:
        after = {**offsets_before, **{m.partition: m.offset + 1 for m in messages[:count]}}
        return {"offsets": {str(partition): offset for partition, offset in after.items()}}

    return position_after
