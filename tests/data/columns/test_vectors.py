"""Vectors of numbers in a column, against NumPy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.data.streaming.messages import MessageDecoder
from runner.data.tabular.keep_features import keep_features
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError
from runner.serving.artifact.folder import GraphSpec
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.rows.encode import Transforms
from runner.serving.server.columns import example_request, make_table, served_columns
from runner.serving.server.tensors import parse_request
from tests.data.clicks import open_dataset, recipe_settings, write_parquet
from tests.data.streaming.test_messages import messages_of

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS, SIZE = 200, 5
NAMES = [f"v[{i}]" for i in range(SIZE)]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(3, 2, (ROWS, SIZE)).round(3)


def write(folder: Path, kind: str, vectors: list[Any]) -> tuple[str, str, dict[str, Any]]:
    """Write a table with a label and vectors; return its path, format, and their settings."""
    label = np.arange(len(vectors)) % 2
    lists: pa.Array = pa.array([None if v is None else list(v) for v in vectors])
    if kind == "fixed":
        lists = lists.cast(pa.list_(pa.float64(), SIZE))
    if kind in ("list", "fixed"):
        pq.write_table(pa.table({"label": label, "v": lists}), folder / "x.parquet")
        return str(folder / "x.parquet"), "parquet", {}
    if kind == "objects":
        rows = [{"label": int(y), "v": v} for y, v in zip(label, lists.to_pylist())]
        (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / "x.jsonl"), "jsonl", {}
    separator = {"json": ", ", "bars": "|", "spaces": " "}[kind]
    texts = [None if v is None else separator.join(map(str, v)) for v in lists.to_pylist()]
    if kind == "json":
        texts = [None if text is None else f"[{text}]" for text in texts]
    pacsv.write_csv(pa.table({"label": label, "v": texts}), folder / "x.csv")
    return str(folder / "x.csv"), "csv", {"separator": "json" if kind == "json" else separator}


KINDS = ("list", "fixed", "objects", "json", "bars", "spaces")


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_features_and_standardised_one_by_one(tmp_path, vectors, kind):
    given: list[Any] = vectors.tolist()
    given[3] = None
    path, format_, settings = write(tmp_path, kind, given)
    spec = {"size": SIZE, "standardise": True, "default": 1.0, **settings}
    schema = {"labels": ["label"], "numeric": {"v": spec}}
    data = open_dataset(path=path, format=format_, schema=schema, mix=False)
    assert data.schema.dense == tuple(NAMES)
    filled = vectors.copy()
    filled[3] = 1.0
    expected = (filled - filled.mean(0)) / filled.std(0)
    batch = next(data.batches("train", batch_size=ROWS))
    np.testing.assert_allclose(batch.dense_BD.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_proposed_as_one(tmp_path, vectors, kind):
    path, _, settings = write(tmp_path, kind, vectors.tolist())
    proposal = propose_schema(path, hints=Hints())
    ((column, role),) = proposal.with_role("numeric")
    assert column.name == "v"
    assert role.settings == {"size": SIZE, "standardise": True, **settings}


def test_lists_of_other_kinds_are_not_taken_for_vectors(tmp_path):
    table = pa.table(
        {
            "label": [0, 1] * 50,
            "uneven": [[0.5] * (2 + n % 2) for n in range(100)],
            "tags": [f"{n % 7}|{n % 5}|{n % 3}" for n in range(100)],
            "range": [f"{n}.5 {n + 1}.5" for n in range(100)],
            "date": [f"2026.{1 + n % 12}.{1 + n % 28}" for n in range(100)],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    proposal = propose_schema(str(tmp_path / "x.parquet"), hints=Hints())
    assert not proposal.with_role("numeric")
    roles = {column.name: role for column, role in proposal.columns}
    assert roles["tags"].settings["separator"] == "|"
    with pytest.raises(ConfigError, match="--numeric uneven: has no numbers, but list"):
        propose_schema(str(tmp_path / "x.parquet"), hints=Hints(numeric=("uneven",)))


@pytest.mark.parametrize(
    ("kind", "vector", "message"),
    [
        ("list", [1.0] * 4, r"row 7, column 'v': a vector of 4 numbers: expected 5"),
        ("list", [1.0, 2.0, None, 4.0, 5.0], r"row 7, column 'v\[2\]': is missing and has no"),
        ("list", [1.0, np.nan, 3.0, 4.0, 5.0], r"row 7, column 'v\[1\]': is missing and has no"),
        ("bars", ["1", "2", "x", "4", "5"], r"line 9, column 'v': 'x' is not a number"),
    ],
)
def test_a_wrong_vector_is_told_by_its_row_and_can_be_left_out(
    tmp_path, vectors, kind, vector, message
):
    given: list[Any] = vectors.tolist()
    if kind == "bars":
        given = [list(map(str, v)) for v in given]
    given[7] = vector
    path, format_, settings = write(tmp_path, kind, given)
    numeric = {"v": {"size": SIZE, **settings}}
    table = {"path": path, "format": format_, "mix": False}
    table["schema"] = {"labels": ["label"], "numeric": numeric}
    with pytest.raises(DataError, match=message):
        open_dataset(**table)
    data = open_dataset(**table, on_bad_rows="skip")
    assert data.bad_rows["count"] == 1
    batch = next(data.batches("train", batch_size=ROWS))
    assert batch.weights_B.tolist() == [float(row != 7) for row in range(ROWS)]
    others = np.arange(ROWS) != 7
    np.testing.assert_allclose(batch.dense_BD.numpy()[others], vectors[others], rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "settings", "message"),
    [
        ("v", {}, r"column 'v' has type list<.*>, expected a number"),
        ("label", {"size": 2}, r"'label' has type int64, expected a list of numbers; a text needs"),
        ("v", {"size": 5, "separator": "|"}, r"expected a text, since it has a separator"),
    ],
)
def test_a_column_that_holds_no_such_vectors_is_told(tmp_path, vectors, column, settings, message):
    path, *_ = write(tmp_path, "list", vectors.tolist())
    numeric = {"x": {"column": column, **settings}}
    with pytest.raises(DataError, match=message):
        open_dataset(path=path, schema={"labels": ["label"], "numeric": numeric})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 2, "separator": "words"}, r"numeric\.v\.separator: words: are ids"),
        ({"separator": "|"}, r"numeric\.v\.separator: is for a vector, whose number of values"),
        ({"size": 0}, r"numeric\.v\.size=0: must be at least 1"),
        ({"size": 2, "element": 1}, r"numeric\.v\.element: there is no such key"),
    ],
)
def test_mistakes_in_the_schema_are_told(settings, message):
    with pytest.raises(ConfigError, match=message):
        parse_schema({"labels": ["label"], "numeric": {"v": settings}})


@pytest.mark.parametrize("separator", ["", "json", "|"])
def test_messages_and_requests_hold_vectors(vectors, separator):
    spec = {"size": SIZE, "separator": separator} if separator else {"size": SIZE}
    declared = parse_schema({"labels": ["label"], "numeric": {"v": spec, "price": {}}})
    values: list[Any] = vectors[:2].tolist()
    if separator:
        texts = ["|".join(map(str, v)) for v in values]
        values = [json.dumps(v) for v in values] if separator == "json" else texts
    rows = [{"label": 1, "price": 2.0, "v": v} for v in values]
    found = MessageDecoder.of("clicks", declared, None).decode(messages_of(rows), 0)
    np.testing.assert_allclose(found.dense_DW[:SIZE].T, vectors[:2], rtol=1e-6)

    raw = Transforms(replace(declared, labels=()), FittedTransforms())
    encoded = encode_rows(raw, pa.Table.from_pylist(rows), [*NAMES, "price"])
    assert [encoded.dense[name][1] for name in NAMES] == pytest.approx(vectors[1])
    assert encoded.dense["price"].tolist() == [2, 2]

    graph = GraphSpec("model", (*NAMES, "price"), (), (), ("label",))
    body = json.dumps(example_request(raw, [graph])).encode()
    sent = make_table(served_columns(raw, [graph]), parse_request(body, None).inputs)
    ones = encode_rows(raw, sent, [*NAMES, "price"])
    assert [ones.dense[name].tolist() for name in NAMES] == [[1.0]] * SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_vectors_alone_gets_ids_that_a_model_can_learn_from(tmp_path, vectors, kind):
    path, format_, _ = write(tmp_path, kind, vectors.tolist())
    proposal = propose_schema(path, hints=Hints())
    ((name, settings),) = proposal.more_ids.items()
    assert (name, settings["column"], settings["encode"]) == ("v_bucket", "v", "bucketise")
    ids = {"v": {**settings, "buckets": None, "boundaries": [2.0, 4.0]}}
    schema = {"labels": ["label"], "categorical": ids}
    data = open_dataset(path=path, format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    wanted = np.searchsorted([2.0, 4.0], vectors.ravel(), "right")
    assert batch.sparse["v"].values().tolist() == wanted.tolist()
    assert batch.sparse["v"].lengths().tolist() == [SIZE] * ROWS


def test_a_shortened_schema_keeps_a_vector_of_which_an_element_is_kept(tmp_path, vectors):
    path = write_parquet(tmp_path / "x", pa.table({"y": [0] * ROWS, "v": list(vectors)}))
    schema = {"labels": ["y"], "numeric": {"v": {"size": SIZE}, "w": {"size": 2}, "x": {}}}
    recipe = TableRecipe(**recipe_settings(path=path, schema=schema))
    assert keep_features(recipe, ["v[3]", "x"])["numeric"] == {"v": {"size": SIZE}, "x": {}}
