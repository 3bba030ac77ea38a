"""Raw ids of growing tables on their way from files and messages into batches."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.columns.hash_text import hash_texts
from runner.data.columns.schema_file import parse_schema
from runner.data.growing.settings import NO_ID, Eviction, Growth
from runner.data.streaming.kafka import TopicRecipe
from runner.data.streaming.kafka_consumer import Message
from runner.data.tabular.table import table
from runner.errors import DataError

USER = [2**63 - 1, -(2**63) + 1, None, 7, -1, 0]
GROWING = {"encode": "growing", "num_rows": 50}
SCHEMA = {
    "labels": ["click"],
    "categorical": {"user": GROWING, "tags": {**GROWING, "list": True, "min_count": 2}},
}
TAGS = [[5, -5], [], None, [2**62], [None, 1], [9]]
ROWS = pa.table(
    {
        "click": [0, 1, 0, 1, 0, 1],
        "user": pa.array(USER, pa.int64()),
        "tags": pa.array(TAGS, pa.list_(pa.int64())),
        "name": pa.array(["a", None, "b", "a", "", "c"]),
    }
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    for split in ("train", "validation"):
        pq.write_table(ROWS, tmp_path / f"{split}.parquet")
    return tmp_path


def batch_of(files, schema, **settings):
    paths = {
        "path": str(files / "train.parquet"),
        "validation_path": str(files / "validation.parquet"),
    }
    options = {"window_rows": 100, "prefetch": 0, "format": "parquet", **paths, **settings}
    dataset = table(schema=schema, **options)
    return dataset, next(dataset.batches("validation", batch_size=6))


def ids_of(kjt, name):
    return kjt[name].values().tolist()


@pytest.mark.parametrize("rewrite", ["auto", "always"])
def test_integers_stay_what_they_are_and_a_missing_one_has_its_own_number(files, rewrite):
    dataset, batch = batch_of(files, SCHEMA, rewrite=rewrite)
    assert ids_of(batch.sparse, "user") == [NO_ID if u is None else u for u in USER]
    flat = [t for tags in TAGS if tags for t in tags]
    assert ids_of(batch.sparse, "tags") == [NO_ID if t is None else t for t in flat]
    assert batch.sparse["tags"].lengths().tolist() == [2, 0, 0, 1, 2, 1]
    assert dict(dataset.growth) == {"user": Growth(), "tags": Growth(min_count=2)}
    assert [f.num_rows for f in dataset.schema.sparse] == [50, 50]


def test_texts_are_their_hashes(files):
    evict = {"by": "lfu", "every": 3}
    columns = {"name": {**GROWING, "evict": evict}}
    dataset, batch = batch_of(files, {"labels": ["click"], "categorical": columns})
    hashes = hash_texts(ROWS["name"].combine_chunks()).tolist()
    texts = ROWS["name"].to_pylist()
    expected = [NO_ID if text is None else h for h, text in zip(hashes, texts)]
    assert ids_of(batch.sparse, "name") == expected
    assert dict(dataset.growth) == {"name": Growth(evict=Eviction("lfu", 3, 0.1))}


def test_features_of_one_table_follow_the_same_rules(files):
    other = {**GROWING, "table": "user", "column": "user", "min_count": 3}
    columns = {"user": {**GROWING, "table": "user"}, "again": other}
    with pytest.raises(DataError, match="'user': its columns must all be growing, with the same"):
        batch_of(files, {"labels": ["click"], "categorical": columns})


def test_a_message_of_a_topic_holds_them(monkeypatch):
    settings = {"servers": "s:1", "topic": "t", "begin": "earliest", "idle_timeout_s": None}
    recipe = TopicRecipe(schema=SCHEMA, **settings)
    rows = [json.dumps(row).encode() for row in ROWS.select(["click", "user", "tags"]).to_pylist()]
    messages = [Message(0, n, value, "t") for n, value in enumerate(rows)]
    decoded = recipe.decoder.decode(messages, 0)
    assert decoded.ids_FW.tolist() == [[NO_ID if u is None else u for u in USER]]


def test_a_declaration_reads_as_before_where_nothing_is_evicted():
    """It is part of signatures: a run of before must resume."""
    plain = parse_schema({"labels": ["y"], "categorical": {"c": {"num_rows": 3}}})
    assert "evict" not in repr(plain)
    rules = {**GROWING, "evict": {"by": "lru", "every": 9, "share": 0.5}}
    declared = parse_schema({"labels": ["y"], "categorical": {"c": rules}})
    assert "evict=Eviction(by='lru', every=9, share=0.5)" in repr(declared)
    assert declared.ids[0].growth == Growth(evict=Eviction("lru", 9, 0.5))
