"""Messages of a topic against the encoder of tables, on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from runner.data.columns.encode import encode_chunk
from runner.data.columns.hash_text import hash_texts
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.streaming.kafka_consumer import Message
from runner.data.streaming.messages import MessageDecoder
from runner.errors import ConfigError, DataError

GROWING = {"encode": "growing", "num_rows": 40}
SCHEMA = {
    "labels": {"click": {"column": "clicked", "positive": ["yes"]}},
    "numeric": {
        "price": {"standardise": True},
        "days": {"encode": "days", "column": "day", "input": "dmy", "until": "time"},
    },
    "categorical": {
        "user": GROWING,
        "item": {**GROWING, "input": "string", "table": "item"},
        "shop": {"encode": "vocabulary"},
        "tags": {"encode": "vocabulary", "list": True, "input": "string"},
        "both": {"cross": ["user", "shop"], "num_rows": 50},
        "hour": {"encode": "hour", "column": "time"},
        "weekday": {"encode": "weekday", "column": "day", "input": "dmy"},
    },
    "sequences": {
        "history": {
            **GROWING,
            "input": "string",
            "table": "item",
            "separator": "|",
            "max_length": 3,
        }
    },
}
ROWS = pa.table(
    {
        "clicked": ["yes", "no", "yes"],
        "price": [1.0, 4.0, 2.0],
        "user": pa.array([2**62, None, -7], pa.int64()),
        "item": ["hat", "cup", None],
        "shop": ["north", "east", "west"],
        "tags": [["a", "b"], [], ["z"]],
        "time": [3600, 7200, 100],
        "day": ["02/01/1970", "31.12.69", "02/01/1970"],
        "history": ["cup|hat|cup|ball", "", "hat"],
    }
)


@pytest.fixture
def learnt(tmp_path) -> str:
    def words(*texts):
        return np.sort(hash_texts(pa.array(texts)))

    FittedTransforms(
        num_rows={
            **{"user": 40, "item": 40, "shop": 4, "tags": 4, "both": 50, "hour": 25, "weekday": 8}
        },
        moments={"price": [2.0, 0.5]},
        id_types={"user": "integer", "item": "string", "shop": "string", "tags": "string"},
        vocabularies={"shop": words("north", "east"), "tags": words("a", "b")},
    ).save(tmp_path)
    return str(tmp_path)


def messages_of(rows) -> list[Message]:
    return [Message(0, n, json.dumps(row).encode(), "clicks") for n, row in enumerate(rows)]


@pytest.mark.parity("E16")
def test_messages_are_encoded_as_the_rows_of_a_table(learnt):
    declared = parse_schema(SCHEMA)
    decoder = MessageDecoder.of("clicks", declared, learnt)
    found = decoder.decode(messages_of(ROWS.to_pylist()), 0)
    chunk = RowChunk(DataFile("rows"), 0, 0, 3, ROWS)
    fitted = FittedTransforms.load(Path(learnt))
    expected = encode_chunk(chunk, declared, fitted, RowValidator.for_chunk(chunk, False))
    pooled = [c.name for c in decoder.columns.categorical if not c.is_list]
    assert pooled == ["user", "item", "shop", "both", "hour", "weekday"]
    assert found.ids_FW.tolist() == [expected[name].to_pylist() for name in pooled]
    assert found.labels_WT[:, 0].tolist() == [1, 0, 1]
    assert found.dense_DW[0].tolist() == [-2, 4, 0]
    days = [3600 / 86400 - 1, 7200 / 86400 + 1, 100 / 86400 - 1]
    np.testing.assert_allclose(found.dense_DW[1], days, rtol=1e-6)
    for times in (
        ["1970-01-01 01:00", "1970-01-01T02:00Z", "1970-01-01 00:01:40"],
        ["3600", 7.2e3, 100],
    ):
        rows = [row | {"time": time} for row, time in zip(ROWS.to_pylist(), times)]
        again = decoder.decode(messages_of(rows), 0)
        assert again.dense_DW[1].tolist() == found.dense_DW[1].tolist()
    assert found.lists[0].values_V.tolist() == [*expected["tags"].to_pylist()[0], 0]
    history = found.sequences[0].values_V.tolist()
    assert history == hash_texts(pa.array(["hat", "cup", "ball", "hat"])).tolist()


def test_objects_within_a_message_are_columns():
    item = SCHEMA["categorical"]["item"]
    declared = parse_schema({"labels": ["click"], "categorical": {"shown.item.sku": item}})
    decoder = MessageDecoder.of("clicks", declared, None)
    rows = [{"click": 1, "shown": {"item": {"sku": "hat"}, "x": [1]}}, {"click": 0, "shown": None}]
    found = decoder.decode(messages_of(rows), 0)
    flat = [{"click": 1, "shown.item.sku": "hat"}, {"click": 0, "shown.item.sku": None}]
    expected = decoder.decode(messages_of(flat), 0)
    assert found.ids_FW.tolist() == expected.ids_FW.tolist()
    assert found.ids_FW[0, 0] == hash_texts(pa.array(["hat"]))[0]


def test_growing_texts_need_nothing_that_is_fitted():
    schema = {"labels": ["click"], "categorical": {"item": SCHEMA["categorical"]["item"]}}
    decoder = MessageDecoder.of("clicks", parse_schema(schema), None)
    found = decoder.decode(messages_of([{"click": 1, "item": "hat"}]), 0)
    assert found.ids_FW.tolist() == [hash_texts(pa.array(["hat"])).tolist()]
    assert decoder.fitted.id_types == {"item": "string"}


def test_groups_have_the_type_of_their_ids_and_carried_columns_are_left_out():
    schema = {
        "labels": ["click"],
        "categorical": {"user": {"encode": "hash", "num_rows": 9, "input": "string"}},
        "groups": ["user", "session"],
        "carried": ["request"],
    }
    decoder = MessageDecoder.of("clicks", parse_schema(schema), None)
    row = {"click": 1, "user": "ann", "session": 2**60}
    found = decoder.decode(messages_of([row | {"request": "r1"}, row]), 0)
    assert found.groups_WG.tolist() == [[hash_texts(pa.array(["ann"]))[0], 2**60]] * 2


def test_ids_that_were_unsigned_in_the_training_may_be(tmp_path):
    vocabulary = np.sort(np.array([2**63 + 5, 7], np.uint64).view(np.int64))
    FittedTransforms(
        num_rows={"user": 4}, id_types={"user": "unsigned"}, vocabularies={"user": vocabulary}
    ).save(tmp_path)
    schema = {"labels": ["click"], "categorical": {"user": {"encode": "vocabulary"}}}
    decoder = MessageDecoder.of("clicks", parse_schema(schema), str(tmp_path))
    rows = [{"click": 1, "user": user} for user in (7, 2**63 + 5, 2**64 - 1, None)]
    assert decoder.decode(messages_of(rows), 0).ids_FW.tolist() == [[3, 2, 0, 1]]


@pytest.mark.parametrize(
    "times", [[3, 1.5, 2], ["2024-01-03", "2024-01-01T00:00:00.5Z", "2024-01-02 10:00"]]
)
def test_a_list_is_ordered_by_numbers_or_times(times):
    seen = {"num_rows": 9, "max_length": 2, "keep": "last", "order_by": "seen_at"}
    schema = {"labels": ["click"], "sequences": {"seen": {"encode": "as_is", **seen}}}
    decoder = MessageDecoder.of("clicks", parse_schema(schema), None)
    found = decoder.decode(messages_of([{"click": 1, "seen": [4, 5, 6], "seen_at": times}]), 0)
    assert found.sequences[0].values_V.tolist() == [6, 4]


def test_what_must_be_fitted_comes_from_a_run():
    with pytest.raises(ConfigError, match=r"dataset\.learnt=RUN/data takes those of a run"):
        MessageDecoder.of("clicks", parse_schema(SCHEMA), None)


BAD = {
    "a text that is not declared": ({"user": "ann"}, "column 'user': value 'ann' is not of type"),
    "a fraction for an id": ({"user": 1.5}, "column 'user': value 1.5 is not of type int64"),
    "a number for a text": ({"item": 7}, "column 'item': value 7 is not of type string"),
    "a label of neither": ({"clicked": None}, "column 'clicked': the label is missing"),
    "no number": ({"price": None}, "column 'price': is missing and has no default"),
}


@pytest.mark.parametrize(("change", "problem"), BAD.values(), ids=BAD)
def test_a_message_that_is_no_row_is_named(learnt, change, problem):
    decoder = MessageDecoder.of("clicks", parse_schema(SCHEMA), learnt)
    rows = ROWS.to_pylist()
    rows[1] |= change
    with pytest.raises(DataError, match=f"topic clicks, partition 0, offset 1.*{problem}"):
        decoder.decode(messages_of(rows), 0)
