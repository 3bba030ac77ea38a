"""dataset=kafka against the mock broker of librdkafka, which speaks the real protocol."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from runner.batch import DataPosition
from runner.data.streaming.kafka import kafka
from runner.errors import ConfigError, DataError
from tests.data.streaming.files import SCHEMA, rows
from tests.data.streaming.test_folder import ids, read

ck = pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")
PARTITIONS = 4  # of a new topic, by the broker's default
SERVERS = os.environ.get("RUNNER_TEST_KAFKA")  # of a real broker, if there is one


class Broker:
    """A producer that contains a mock broker, or talks to a real one."""

    def __init__(self) -> None:
        options = {"bootstrap.servers": SERVERS} if SERVERS else {"test.mock.num.brokers": 1}
        self.producer = ck.Producer({**options, "log_level": 0})
        brokers = self.producer.list_topics(timeout=30).brokers.values()
        self.servers = ",".join(f"{b.host}:{b.port}" for b in brokers)

    def send(self, topic: str, messages: list, partitions: int = PARTITIONS, at: int = 0) -> None:
        """Send message n to partition n modulo the number of partitions."""
        self.producer.list_topics(topic, timeout=30)  # creates the topic
        for number, message in enumerate(messages, start=at):
            value = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.producer.produce(topic, value, partition=number % partitions)
        self.producer.flush(30)


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name.split('[')[0]}-{time.time_ns()}"


def stream(broker: Broker, topic: str, **settings):
    given = {"begin": "earliest", "idle_timeout_s": 1.0, "client": {}}
    return kafka(servers=broker.servers, topic=topic, schema=SCHEMA, **(given | settings))


def test_partitions_take_turns_and_the_position_is_their_offsets(broker, topic):
    whole = rows(200)
    broker.send(topic, whole.to_pylist())
    batches, end = read(stream(broker, topic), 30)
    assert ids(batches) == list(range(180))
    assert [int(r) for b in batches for r in b.rows_B] == list(range(180))
    labels = [int(y) for b in batches for y in b.labels_BT[:, 0]]
    assert labels == whole["click"].to_pylist()[:180]
    assert batches[0].cursor == DataPosition(0, 30, {"offsets": {"0": 8, "1": 8, "2": 7, "3": 7}})
    assert end == f"no message in partition 0 of {topic} for 1 s"


@pytest.mark.long
@pytest.mark.parity("E13")
def test_from_any_position_on_it_gives_the_rest(broker, topic):
    broker.send(topic, rows(200).to_pylist())
    batches, _ = read(stream(broker, topic), 30)
    for number in (0, 2, 4):
        rest, _ = read(stream(broker, topic), 30, batches[number].cursor)
        assert ids(rest) == ids(batches[number + 1 :])
        assert [b.cursor for b in rest] == [b.cursor for b in batches[number + 1 :]]


@pytest.mark.long
def test_messages_that_arrive_in_another_order_are_given_out_in_turn(broker, topic):
    """Partitions arrive one after another, each after a pause; the order does not change."""
    messages = rows(80).to_pylist()
    broker.send(topic, messages[:4])

    def later() -> None:
        for partition in (2, 0, 3, 1):
            time.sleep(0.15)
            for message in messages[4 + partition :: PARTITIONS]:
                value = json.dumps(message).encode()
                broker.producer.produce(topic, value, partition=partition)
            broker.producer.flush(30)

    thread = threading.Thread(target=later)
    thread.start()
    batches, _ = read(stream(broker, topic, idle_timeout_s=3.0), 20)
    thread.join()
    assert ids(batches) == list(range(80))


@pytest.mark.long
def test_begin_latest_takes_only_what_comes_from_then_on(broker, topic):
    broker.send(topic, rows(40).to_pylist())
    dataset = stream(broker, topic, begin="latest", idle_timeout_s=3.0)
    more = rows(48).to_pylist()[40:]
    threading.Timer(0.7, lambda: broker.send(topic, more)).start()
    batches, _ = read(dataset, 8)
    assert ids(batches) == list(range(40, 48))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"{click", "is not JSON"),
        (b"[1, 2]", "is not a JSON object"),
        ({"click": 1, "price": "dear"}, "column 'price': value 'dear' is not of type double"),
        ({"click": 2, "age": 1.0, "item": 3, "user": 1, "tags": []}, "column 'click': value 2"),
        ({"click": 1, "age": 1.0, "item": None, "user": 1}, "column 'item': is missing"),
        ({"click": 1, "age": 1.0, "item": 1000, "user": 1}, "its table has the rows 0 to 999"),
    ],
)
def test_a_message_that_is_no_row_is_named_by_partition_and_offset(broker, topic, message, problem):
    good = rows(6).to_pylist()
    broker.send(topic, [*good, message, good[0]])
    with pytest.raises(DataError, match=f"partition 2, offset 1.*{problem}"):
        read(stream(broker, topic), 4)


def test_offsets_that_are_gone_or_never_existed_are_an_error(broker, topic):
    broker.send(topic, rows(40).to_pylist())
    beyond = DataPosition(0, 40, {"offsets": {"0": 10, "1": 10, "2": 10, "3": 99}})
    with pytest.raises(DataError, match=r"partition 3: holds the offsets 0 to 9, .* at 99"):
        read(stream(broker, topic), 4, beyond)
    fewer = DataPosition(0, 40, {"offsets": {"0": 10, "1": 10}})
    with pytest.raises(DataError, match="has 4 partitions, and had 2 before"):
        read(stream(broker, topic), 4, fewer)


def test_a_broker_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr("runner.data.streaming.kafka_consumer.CONNECT_TIMEOUT_S", 1.0)
    dataset = kafka(
        servers="127.0.0.1:1",
        topic="clicks",
        schema=SCHEMA,
        begin="earliest",
        idle_timeout_s=1.0,
        client={"log_level": 0},
    )
    with pytest.raises(DataError, match=r"dataset.servers=127.0.0.1:1: no answer"):
        read(dataset, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": None}, "dataset.topic is not set"),
        ({"begin": "erliest"}, "nearest: 'earliest'"),
        ({"client": {"auto.offset.reset": "latest"}}, "is reserved; the runner sets it"),
        ({"client": {"plugin.library.paths": "outputs/sent/data/code"}}, "may not name code"),
        ({"client": {"sasl.kerberos.principal": "me; touch here"}}, "may not name code"),
        ({"idle_timeout_s": 0}, "must be above 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    given = {"servers": "x", "topic": "t", "schema": SCHEMA, "begin": "earliest"}
    given |= {"idle_timeout_s": None, "client": {}}
    with pytest.raises(ConfigError, match=message):
        kafka(**(given | settings))
