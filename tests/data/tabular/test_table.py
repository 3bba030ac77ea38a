"""A declared table, against a reading of the same rows in plain Python."""

from __future__ import annotations

import datetime
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from runner.data.columns.hash_text import hash_texts
from runner.data.core.blocks import read_blocks
from runner.data.core.transforms import hash_ids
from runner.errors import DataError
from tests.data.clicks import SCHEMA, clicks, open_dataset, write_parquet, write_text_table

ROWS = 600


@pytest.fixture(autouse=True, scope="module")
def root(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def rows():
    return clicks(ROWS)


def text_schema():
    """Return the schema for CSV files, where lists are texts with a separator."""
    schema = {**SCHEMA, "categorical": dict(SCHEMA["categorical"])}
    schema["categorical"]["tags"] = {
        "separator": "|",
        "encode": "vocabulary",
        "weights": "tag_weights",
    }
    schema["sequences"] = {"history": {**SCHEMA["sequences"]["history"], "separator": "|"}}
    return schema


@pytest.fixture(scope="module", params=["parquet", "csv", "tsv"])
def data(request, rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "parquet":
        return open_dataset(path=write_parquet(folder, rows, 3))
    path = write_text_table(
        folder / f"x.{request.param}", rows, "," if request.param == "csv" else "\t"
    )
    return open_dataset(path=path, format=request.param, schema=text_schema())


@pytest.fixture(scope="module")
def batch_and_rows(data, rows):
    """Return one batch of all rows, and the rows of the source in its order."""
    batch = next(data.batches("train", batch_size=ROWS))
    ids = data.read_carried_columns("train", 0, ROWS)["id"].to_pylist()
    table = rows.to_pylist()
    return batch, [table[int(name[3:])] for name in ids]


def hashed(values, num_rows, salt=0):
    return hash_ids(hash_texts(pa.array(values)), num_rows, salt).tolist()


def test_every_row_comes_once_in_an_order_that_is_not_the_files(batch_and_rows, rows):
    _, found = batch_and_rows
    names = [row["id"] for row in found]
    assert sorted(names) == sorted(rows["id"].to_pylist())
    assert names != rows["id"].to_pylist()


def test_labels_weights_and_numbers(batch_and_rows):
    batch, rows = batch_and_rows
    assert batch.labels_BT[:, 0].tolist() == [row["click"] for row in rows]
    np.testing.assert_allclose(batch.labels_BT[:, 1], [row["rating"] for row in rows], rtol=1e-6)
    np.testing.assert_allclose(batch.weights_B, [row["importance"] for row in rows], rtol=1e-6)
    price = [math.log1p(max(row["price"] or 0, 0)) for row in rows]
    np.testing.assert_allclose(batch.dense_BD[:, 0], price, rtol=1e-6)
    age = np.array([30 if row["age"] is None else row["age"] for row in rows])
    wanted = (age - age.mean()) / age.std()
    np.testing.assert_allclose(batch.dense_BD[:, 1], wanted, rtol=1e-4, atol=1e-5)


def test_single_ids(batch_and_rows, data):
    batch, rows = batch_and_rows
    sizes = {f.name: f.num_rows for f in data.schema.sparse}
    assert batch.sparse["user"].values().tolist() == [row["user"] for row in rows]
    levels = [
        4 if row["price"] is None else sum(row["price"] >= edge for edge in (5, 10, 20))
        for row in rows
    ]
    assert batch.sparse["price_level"].values().tolist() == levels
    assert sizes["price_level"] == 5
    device = [0 if row["device"] is None else hashed([row["device"]], 50, 7)[0] for row in rows]
    assert batch.sparse["device"].values().tolist() == device


@pytest.mark.parity("E14")
def test_a_vocabulary_gives_every_frequent_value_a_row_of_its_own(batch_and_rows, data):
    batch, rows = batch_and_rows
    counts = Counter(row["city"] for row in rows)
    frequent = {city for city, count in counts.items() if count >= 3 and city is not None}
    ids = batch.sparse["city"].values().tolist()
    pairs = {(row["city"], id_) for row, id_ in zip(rows, ids)}
    for city, id_ in pairs:
        wanted = 1 if city is None else 0 if city not in frequent else id_
        assert id_ == wanted
    assert len({id_ for city, id_ in pairs if city in frequent}) == len(frequent)
    size = next(f.num_rows for f in data.schema.sparse if f.name == "city")
    assert size == len(frequent) + 2


def test_lists_with_weights_and_of_separated_texts(batch_and_rows, data):
    batch, rows = batch_and_rows
    feature = {f.name: f for f in data.schema.sparse}
    assert feature["tags"].weighted and feature["words"].pooling == "mean"
    mean = np.mean([len(row["tags"]) for row in rows])
    assert feature["tags"].mean_length == pytest.approx(mean)
    tags = batch.sparse["tags"]
    assert tags.lengths().tolist() == [len(row["tags"]) for row in rows]
    weights = [w for row in rows for w in row["tag_weights"]]
    np.testing.assert_allclose(tags.weights(), weights, rtol=1e-6)
    known = {}
    for tag, id_ in zip([t for row in rows for t in row["tags"]], tags.values().tolist()):
        assert known.setdefault(tag, id_) == id_
    assert sorted(known.values()) == [2, 3, 4, 5]
    assert batch.sparse["user"].weights().tolist() == [1.0] * ROWS
    words = [word for row in rows for word in row["words"].split("|") if word]
    assert batch.sparse["words"].values().tolist() == hashed(words, 30)


@pytest.mark.parity("E14")
def test_a_cross_tells_every_pair_apart(batch_and_rows):
    batch, rows = batch_and_rows
    pairs = {}
    for row, id_ in zip(rows, batch.sparse["user_city"].values().tolist()):
        assert pairs.setdefault((row["user"], row["city"]), id_) == id_
    assert len(set(pairs.values())) > 0.75 * len(pairs)  # of 1,000 rows


@pytest.mark.parity("E14")
def test_sequences_keep_their_last_values(batch_and_rows, data):
    batch, rows = batch_and_rows
    assert [(f.name, f.max_length, f.table) for f in data.schema.sequences] == [
        ("history", 3, "item")
    ]
    history = batch.sequences["history"]
    assert [ids.tolist() for ids in history.to_dense()] == [row["history"][-3:] for row in rows]


def test_groups_and_carried_columns(batch_and_rows, data):
    batch, rows = batch_and_rows
    assert data.schema.groups == ("user", "fold")
    assert batch.groups_BG[:, 0].tolist() == [row["user"] for row in rows]
    folds = hash_texts(pa.array([str(row["fold"]) for row in rows])).tolist()
    assert batch.groups_BG[:, 1].tolist() == folds
    cities = [row["city"] for row in rows]
    assert data.read_carried_columns("train", 5, 9)["city"].to_pylist() == cities[5:9]


@pytest.mark.parametrize("seed", [None, 0])
def test_prepared_ids_have_the_narrowest_type_and_keep_their_values(tmp_path, seed):
    sizes = {"uint8": 256, "uint16": 65_536, "int32": 65_537}
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, size, 500) for name, size in sizes.items()}
    for name, size in sizes.items():
        columns[name][:2] = 0, size - 1
    own = {"row": np.arange(500), "clicked": np.arange(500) % 2}
    table = pa.table({**own, **columns})
    ids = {name: {"encode": "as_is", "num_rows": size} for name, size in sizes.items()}
    data = open_dataset(
        path=write_parquet(tmp_path, table, 1),
        schema={"labels": {"clicked": {}}, "categorical": ids, "groups": ["row"]},
        rewrite="always",  # which shuffles the rows
    )
    stored = read_blocks(data.indexes["train"].files[0])
    assert {name: str(stored.schema.field(name).type) for name in sizes} == {n: n for n in sizes}
    batch = next(data.batches("train", batch_size=500, seed=seed))
    rows = batch.groups_BG[:, 0].numpy()
    for name in sizes:
        assert batch.sparse[name].values().tolist() == columns[name][rows].tolist()


DAYS = [[datetime.date(2024, 1, 3), datetime.date(2023, 12, 31), None], [datetime.date(1969, 1, 1)]]
ORDERS = {
    "numbers": pa.array([[7, -1, None], [0]], pa.list_(pa.int32())),
    "dates": pa.array(DAYS, pa.list_(pa.date32())),
    "times": pa.array(DAYS, pa.list_(pa.date32())).cast(pa.list_(pa.timestamp("us"))),
    "durations": pa.array([[7, -1, None], [0]], pa.list_(pa.duration("s"))),
    "texts of numbers": pa.array([["1e1", " +9.5", None], [".5"]]),
    "texts of times": pa.array([["2024-01-03 10:00", "2024-01-03T09:00Z", None], ["1969-01-01"]]),
    "joined times": pa.array(["2024-01-03|2023-12-31|2025-01-01", "1969-01-01"]),
}


def open_ordered(folder, order, **settings):
    history = {"num_rows": 9, "max_length": 2, "order_by": "when"}
    ids = pa.array([[1, 2, 3], [4]])
    if pa.types.is_string(order.type):
        ids, history["separator"] = pa.array(["1|2|3", "4"]), "|"
    path = write_parquet(folder, pa.table({"y": [0, 1], "history": ids, "when": order}))
    schema = {"labels": ["y"], "sequences": {"history": history}}
    return open_dataset(path=path, schema=schema, mix=False, **settings)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_sequence_stands_in_the_order_of_numbers_or_times(tmp_path, order):
    batch = next(open_ordered(tmp_path, order).batches("train", batch_size=2))
    assert batch.sequences["history"].values().tolist() == [1, 3, 4]  # the last two of 2, 1, 3


def test_what_gives_no_order_is_named_or_skipped(tmp_path):
    order = pa.array([["2024-01-03", "soon", None], ["7"]])
    with pytest.raises(DataError, match="row 0, column 'when': value 'soon': neither a number nor"):
        open_ordered(tmp_path, order)
    assert open_ordered(tmp_path, order, on_bad_rows="skip").bad_rows["count"] == 1
    weights = {"column": "history", "separator": "|", "num_rows": 9, "weights": "when"}
    table = pa.table({"y": [0], "history": ["1|2"], "when": ["1.5|2024-01-03"]})
    with pytest.raises(DataError, match="row 0, column 'when': '2024-01-03' is not a number"):
        open_dataset(
            path=write_parquet(tmp_path / "weights", table),
            schema={"labels": ["y"], "categorical": {"h": weights}},
        )
    with pytest.raises(
        DataError, match=r"'when' has type list<.*expected a list of numbers or tim"
    ):
        open_ordered(tmp_path / "lists", pa.array([[[1], [2], [3]], [[4]]]))


@pytest.mark.parametrize(
    "settings", [{"encode": "vocabulary"}, {"encode": "growing", "num_rows": 9}, {"default": 7}]
)
@pytest.mark.parametrize("is_list", [False, True])
def test_nan_is_a_missing_id(tmp_path, settings, is_list):
    found = []
    for missing in (None, float("nan")):
        ids = pa.array([1.0, missing, 2.0, 2.0], pa.float64())
        ids = pa.array([[x] for x in ids.to_pylist()], pa.list_(pa.float64())) if is_list else ids
        path = write_parquet(tmp_path / str(missing), pa.table({"y": [0, 1, 0, 1], "a": ids}))
        schema = {"labels": ["y"], "categorical": {"a": {**settings, "list": is_list}}}
        data = open_dataset(path=path, schema=schema, mix=False)
        found.append(next(data.batches("train", batch_size=4)).sparse.values().tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("one", "other", "num_rows"),
    [
        (
            {"encode": "bucketise", "boundaries": [2, 4, 6]},
            {"encode": "bucketise", "buckets": 2},
            5,
        ),
        ({"encode": "hour"}, {"encode": "weekday"}, 25),
        ({"num_rows": 60}, {"num_rows": 40}, 60),
        ({}, {"num_rows": 40}, 50),
        ({"encode": "vocabulary"}, {"num_rows": 40}, 52),
        ({"encode": "vocabulary"}, {"encode": "vocabulary", "default": 70}, 71),
        ({"encode": "bucketise", "boundaries": [2], "default": 9}, {"encode": "weekday"}, 10),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_shared_table_has_the_rows_that_each_of_its_features_needs(
    tmp_path, one, other, num_rows, turned
):
    values = np.arange(50)
    table = pa.table(
        {"y": values % 2, "a": values, "b": pa.array([None, *values[1:40], *[1] * 10])}
    )
    settings = {"a": {**one, "table": "t"}, "b": {"default": 0, **other, "table": "t"}}
    ids = dict(reversed(settings.items())) if turned else settings
    schema = {"labels": ["y"], "categorical": ids}
    data = open_dataset(path=write_parquet(tmp_path, table), schema=schema, rewrite="always")
    assert {column.num_rows for column in data.schema.sparse} == {num_rows}
    assert next(data.batches("train", batch_size=50)).size == 50
