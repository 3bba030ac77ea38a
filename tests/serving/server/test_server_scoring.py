"""Requests that are scored together: raw and prepared, of rows and of retrieval models."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runner.batch import Schema, SparseFeature, TaskSpec
from runner.errors import DataError
from runner.serving.scorer import Scorer
from runner.serving.server import app
from runner.serving.server.prepared import join
from runner.serving.server.scoring import Work, make_work, output_names, score_batch
from runner.serving.server.tensors import InferRequest, Tensor, parse_request, write_answer
from tests.models.scene import from_yaml
from tests.serving.client import json_inputs
from tests.serving.served import (
    ITEMS,
    ITEMS_COLUMNS,
    click_rows,
    write_artifact,
    write_clicks_model,
)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory) -> Scorer:
    return Scorer.load(write_clicks_model(tmp_path_factory.mktemp("clicks")))


@pytest.fixture(scope="module")
def items(tmp_path_factory) -> Scorer:
    small = {"user_tower": [8], "item_tower": [8], "out": 4, "item": ["item"]}
    model = from_yaml("two_tower", ITEMS, embedding_dim=4, **small)
    folder = tmp_path_factory.mktemp("items")
    return Scorer.load(write_artifact(folder, model, ITEMS, ITEMS_COLUMNS))


def asked(*names: str, **parameters: Any) -> InferRequest:
    return InferRequest("", parameters, {}, dict.fromkeys(names, True), True)


def item_rows(num_rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    lists = [random.integers(0, 40, random.integers(0, 9)).tolist() for _ in range(num_rows)]
    return pa.table(
        {
            "item": random.integers(0, 40, num_rows),
            "user": random.integers(0, 9, num_rows),
            "history": pa.array(lists, pa.list_(pa.int64())),
        }
    )


def raw_work(rows: pa.Table, *outputs: str, graphs: tuple[str, ...] = ("model",)) -> Work:
    return Work(graphs, rows, rows.num_rows, dict.fromkeys(outputs, True))


def prepared_work(scorer: Scorer, rows: pa.Table, graph: str, *outputs: str) -> Work:
    [spec] = [spec for spec in scorer.artifact.graphs if spec.name == graph]
    arrays = dict(zip(spec.inputs, scorer.arrays(graph, scorer.encode(rows))))
    return Work((graph,), arrays, rows.num_rows, dict.fromkeys(outputs, True))


def test_a_batch_has_the_scores_of_one_table_with_all_its_rows_bit_for_bit(clicks):
    tables = [click_rows(size, seed=size) for size in (1, 5, 2)]
    expected = clicks.score(pa.concat_tables(tables))
    for make in (raw_work, lambda t, *names: prepared_work(clicks, t, "model", *names)):
        found = score_batch(clicks, [make(table, "click", "price") for table in tables])
        for name, values in expected.items():
            np.testing.assert_array_equal(np.concatenate([x[name] for x in found]), values)


def test_requests_of_several_forms_in_a_batch_get_their_own_scores(clicks):
    rows = click_rows(6)
    numbers = rows.set_column(0, "age", rows["age"].cast(pa.float32()))
    plain = rows.set_column(0, "age", rows["age"].cast(pa.float32()).cast(pa.float64()))
    bad = rows.set_column(1, "a", pa.array([0, 1, 9, 0, 0, 0]))
    works = [
        raw_work(numbers, "click"),
        raw_work(bad, "click"),
        prepared_work(clicks, rows, "model", "price"),
        raw_work(rows, "click.logit"),
        raw_work(bad, "click"),
    ]
    found = score_batch(clicks, works)
    for answer in (found[1], found[4]):
        assert isinstance(answer, DataError)
        assert "row 2, column 'a': value 9" in str(answer)
    np.testing.assert_array_equal(found[0]["click"], clicks.score(plain)["click"])
    np.testing.assert_array_equal(found[2]["price"], clicks.score(rows)["price"])
    logits = clicks.logits(clicks.encode(rows))
    np.testing.assert_array_equal(found[3]["click.logit"], logits[:, 0])


def test_a_request_that_fails_by_a_bug_fails_alone(clicks):
    rows = click_rows(3)
    broken = Work(("model",), {}, 3, {"click": True})  # has no inputs at all
    found = score_batch(clicks, [broken, prepared_work(clicks, rows, "model", "click")])
    assert isinstance(found[0], KeyError)
    np.testing.assert_array_equal(found[1]["click"], clicks.score(rows)["click"])


def test_joined_inputs_are_those_of_the_rows_encoded_together(clicks, items):
    for scorer, make in ((clicks, click_rows), (items, item_rows)):
        tables = [make(size, seed=size) for size in (3, 1, 4)]
        together = scorer.encode(pa.concat_tables(tables))
        for spec in scorer.artifact.graphs:
            parts = [scorer.arrays(spec.name, scorer.encode(table)) for table in tables]
            joined = join(spec, [dict(zip(spec.inputs, part)) for part in parts])
            for found, expected in zip(joined, scorer.arrays(spec.name, together), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_a_retrieval_model_gives_scores_and_the_vectors_of_both_halves(items):
    rows = item_rows(5)
    names = output_names(items.artifact)
    assert [*names] == ["click", "click.logit", "query.vectors", "items.vectors"]
    [answer] = score_batch(items, [raw_work(rows, *names, graphs=("query", "items"))])
    np.testing.assert_array_equal(answer["click"], items.score(rows)["click"])
    for graph in ("query", "items"):
        np.testing.assert_array_equal(answer[f"{graph}.vectors"], items.vectors(graph, rows))
    products = np.sum(answer["query.vectors"] * answer["items.vectors"], axis=1)
    np.testing.assert_allclose(answer["click.logit"], products, rtol=1e-5)


def test_the_most_probable_class_stands_beside_the_probabilities(tmp_path):
    columns = {
        "labels": {"act": {"classes": ["buy", "see", "go"]}, "click": {}},
        "numeric": ["age"],
        "categorical": {"user": {"num_rows": 9}},
    }
    tasks = [TaskSpec(f"act.{name}", one_of="act") for name in ("buy", "see", "go")]
    schema = Schema(("age",), (SparseFeature("user", 9),), (*tasks, TaskSpec("click")))
    scorer = Scorer.load(write_artifact(tmp_path, from_yaml("mlp", schema), schema, columns))
    rows = pa.table({"age": [*np.linspace(-9, 9, 9), np.nan], "user": [*range(9), 0]})
    scores = scorer.score(rows, skip_bad_rows=True)
    probabilities_RK = np.column_stack([scores[f"act.{name}"][:9] for name in ("buy", "see", "go")])
    best_R = np.array(["buy", "see", "go"])[probabilities_RK.argmax(1)].tolist()
    assert len(set(best_R)) > 1
    assert scores["class_act"].tolist() == [*best_R, None]
    tensors = {
        "age": Tensor("age", "FP64", (9,), rows["age"][:9].combine_chunks()),
        "user": Tensor("user", "INT64", (9,), rows["user"][:9].combine_chunks()),
    }
    work = make_work(scorer.artifact, replace(asked(), inputs=tensors), 9)
    (found,) = score_batch(scorer, [work])
    assert list(found) == ["act.buy", "act.see", "act.go", "click", "class_act"]
    body, _ = write_answer({}, found, dict.fromkeys(found, False))
    answer = json.loads(body)["outputs"][-1]
    assert (answer["datatype"], answer["data"]) == ("BYTES", best_R)


def test_a_half_of_a_retrieval_model_needs_its_own_columns_only(items):
    users = item_rows(4).drop_columns(["item"])
    history = users["history"].combine_chunks()
    tensors = {
        "user": Tensor("user", "INT64", (4,), users["user"].combine_chunks()),
        "history": Tensor("history", "INT64", (4,), history),
    }
    request = asked("query.vectors")
    work = make_work(items.artifact, InferRequest(**{**vars(request), "inputs": tensors}), 10)
    assert work.graphs == ("query",)
    [answer] = score_batch(items, [work])
    np.testing.assert_array_equal(answer["query.vectors"], items.vectors("query", users))
    whole = InferRequest(**{**vars(asked("click")), "inputs": tensors})
    with pytest.raises(DataError, match="no column 'item'"):
        make_work(items.artifact, whole, 10)
    prepared = prepared_work(items, item_rows(4), "query", "query.vectors")
    [answer] = score_batch(items, [prepared])
    np.testing.assert_array_equal(answer["query.vectors"], items.vectors("query", item_rows(4)))
    with pytest.raises(DataError, match=r"no output 'click'; there are query\.vectors"):
        make_work(items.artifact, asked("click", graph="query"), 10)


def test_a_folder_that_is_not_installed_has_metadata_without_a_version(monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(app, "package_version", missing)
    assert json.loads(asyncio.run(app._server_metadata(None)).body)["version"] == "unknown"


def test_lists_that_are_texts_of_json_have_the_scores_of_a_table_with_them(clicks):
    rows = click_rows(6)
    texts = [json.dumps(x) for x in rows["tags"].to_pylist()]
    tags = {"name": "tags", "datatype": "BYTES", "shape": [6], "data": texts}
    inputs = [*json_inputs(rows.drop(["tags"])), tags]
    request = parse_request(json.dumps({"inputs": inputs}).encode(), None)
    [found] = score_batch(clicks, [make_work(clicks.artifact, request, 99)])
    table = rows.set_column(rows.column_names.index("tags"), "tags", pa.array(texts))
    np.testing.assert_array_equal(found["click"], clicks.score(table)["click"])
    texts[4] = "a"
    request = parse_request(json.dumps({"inputs": inputs}).encode(), None)
    [found] = score_batch(clicks, [make_work(clicks.artifact, request, 99)])
    assert "row 4, column 'tags': value 'a': not a JSON list" in str(found)
