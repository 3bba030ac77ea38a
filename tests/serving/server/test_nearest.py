"""The server's nearest items: against sorted products, through an index, and over HTTP."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

from runner.errors import DataError, UserError
from runner.serving.artifact.folder import open_artifact, write_manifest
from runner.serving.index.build_index import IndexSettings, make_index
from runner.serving.items.item_index import ItemIndex
from runner.serving.items.item_table import ITEMS as ITEMS_FILE
from runner.serving.items.item_table import ItemTable, read_items, write_item_table
from runner.serving.items.item_vectors import make_item_table, write_queries
from runner.serving.scorer import Scorer
from runner.serving.server.nearest import NEAREST, describe_nearest, nearest_items, read_left_out
from runner.serving.server.scoring import Work, make_work, output_names, score_batch
from runner.serving.server.tensors import InferRequest, write_answer
from tests.models.scene import from_yaml
from tests.serving.client import json_inputs, request, triton_inputs
from tests.serving.served import ITEMS, ITEMS_COLUMNS, serving, write_artifact
from tests.serving.server.test_server_scoring import asked, item_rows, prepared_work, raw_work

NUM_ITEMS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Two towers with a table of items; a search leaves the row's history out."""
    small = {"user_tower": [8], "item_tower": [8], "out": 4, "item": ["item"]}
    net = from_yaml("two_tower", ITEMS, embedding_dim=4, **small)
    folder = write_artifact(tmp_path_factory.mktemp("items"), net, ITEMS, ITEMS_COLUMNS)
    scorer = Scorer.load(folder)
    write_item_table(folder, make_item_table(scorer))
    write_queries(folder, scorer, item_rows(20).drop_columns(["item"]))
    facts = {"formats": ["pt2"], "quantise": None, "leave_history_out": True, "weights": "trained"}
    facts |= {"run": {}, "checkpoint": {"step": 1, "sha256": "0"}}
    write_manifest(folder, facts)
    return folder


@pytest.fixture(scope="module")
def items(model) -> Scorer:
    return Scorer.load(model)


def by_hand(
    scorer: Scorer, rows: pa.Table, top_k: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The items with the largest products among those that are not in a row's history."""
    item_ID = scorer.vectors("items", {"item": np.arange(NUM_ITEMS)})
    ids, scores = [], []
    for query, history in zip(scorer.vectors("query", rows), rows["history"].to_pylist()):
        products = {n: float(query @ item_ID[n]) for n in range(NUM_ITEMS)}
        kept = sorted(set(products) - set(history[-6:]), key=lambda n: -products[n])[:top_k]
        ids.append(kept)
        scores.append([products[n] for n in kept])
    return ids, scores


def top_work(rows: pa.Table, top_k: int) -> Work:
    return Work(("query",), rows, rows.num_rows, dict.fromkeys(NEAREST, True), top_k)


@pytest.mark.long
def test_requests_of_a_batch_get_their_own_nearest_items(items):
    tables = [item_rows(size, seed=size) for size in (3, 5)]
    prepared = prepared_work(items, tables[1], "query", *NEAREST)
    works = [top_work(tables[0], 4), top_work(tables[1], 7), top_work(tables[1], 4)]
    works.append(replace(prepared, top_k=7))
    works.append(raw_work(tables[0], "click", graphs=("query", "items")))
    found = score_batch(
        items, [*works[:4], Work(**{**vars(works[4]), "graphs": ("query", "items")})]
    )
    for answer, work, table in zip(found, works, (*tables, tables[1], tables[1])):
        ids, scores = by_hand(items, table, work.top_k)
        assert answer["top_items"].tolist() == ids
        np.testing.assert_allclose(answer["top_scores"], scores, rtol=1e-5, atol=1e-6)
        assert answer["top_count"].tolist() == [work.top_k] * table.num_rows
    np.testing.assert_array_equal(found[4]["click"], items.score(tables[0])["click"])


@pytest.mark.long
def test_where_no_items_are_left_the_count_says_so(items):
    rows = item_rows(6)
    [answer] = score_batch(items, [top_work(rows, NUM_ITEMS + 3)])
    unseen = [NUM_ITEMS - len(set(history[-6:])) for history in rows["history"].to_pylist()]
    assert answer["top_count"].tolist() == unseen
    for ids, scores, count, best in zip(
        answer["top_items"], answer["top_scores"], unseen, by_hand(items, rows, NUM_ITEMS)[0]
    ):
        assert ids[:count].tolist() == best and not ids[count:].any()
        assert np.isfinite(scores[:count]).all() and np.isnan(scores[count:]).all()


@pytest.mark.parametrize("leaves_history_out", [True, False])
def test_items_that_a_request_leaves_out_make_room_for_the_next_best(
    items, monkeypatch, leaves_history_out
):
    if not leaves_history_out:
        monkeypatch.setattr("runner.serving.scorer.find_history", lambda _: None)
    rows = item_rows(5)
    arrays = items.arrays("query", items.encode(rows))
    ranked = nearest_items(items, arrays, NUM_ITEMS)["top_items"]
    gone = (*ranked[0, :3].tolist(), ranked[1, 0], 10**18)  # the last is no item
    [other, answer] = score_batch(
        items, [top_work(rows, 4), replace(top_work(rows, 4), leave_out=gone)]
    )
    assert other["top_items"].tolist() == ranked[:, :4].tolist()
    kept = [[i for i in row if i not in gone][:4] for row in ranked.tolist()]
    assert answer["top_items"].tolist() == kept


@pytest.mark.parametrize("with_history", [True, False])
def test_items_left_out_for_all_rows_are_compared_once_and_not_row_by_row(with_history):
    """256 rows that leave 4,096 items out took half a minute, in which no other was answered."""
    random = np.random.default_rng(0)
    items = ItemTable(
        pa.array(np.arange(5000)), np.arange(5000), np.float32(random.random((5000, 4)))
    )
    index, query_RD = ItemIndex.exact(items), np.float32(random.random((256, 4)))
    history = (random.integers(0, 5000, (256, 3)), random.integers(0, 4, 256))
    started = time.perf_counter()
    found, _ = index.find(query_RD, 5, history if with_history else None, range(4096))
    assert time.perf_counter() - started < 15
    for row in (0, 100, 255):
        seen = set(history[0][row, : history[1][row]].tolist()) if with_history else set()
        ranked = np.argsort(-(query_RD[row] @ items.vectors_ID.T), kind="stable").tolist()
        assert found[row].tolist() == [n for n in ranked if n >= 4096 and n not in seen][:5]


def test_the_type_of_the_items_is_read_once_and_not_for_each_request(items, monkeypatch):
    given = {"top_k": 3, "leave_out": [5]}
    assert read_left_out(items.artifact, given) == (5,)
    monkeypatch.setattr("runner.serving.server.nearest.pq", None)  # no file is read from here on
    assert read_left_out(items.artifact, given) == (5,)
    with pytest.raises(DataError, match="must be a whole number"):
        read_left_out(items.artifact, {**given, "leave_out": ["5"]})


def test_unsigned_ids_are_left_out_by_their_own_numbers(items, monkeypatch):
    monkeypatch.setattr("runner.serving.server.nearest._item_type", lambda _: pa.uint64())
    given = {"top_k": 3, "leave_out": [2**64 - 2, 5]}
    assert read_left_out(items.artifact, given) == (2**64 - 2, 5)
    with pytest.raises(DataError, match=r"leave_out\[0\]=-1: must be a whole number"):
        read_left_out(items.artifact, {**given, "leave_out": [-1]})
    numbers = make_item_table(items)
    ids = pa.array([2**64 - 1 - n for n in range(NUM_ITEMS)], pa.uint64())
    index = ItemIndex.exact(ItemTable(ids, numbers.rows_I, numbers.vectors_ID))
    assert index.table_rows([2**64 - 2, 5]) == [numbers.rows_I[1]]


def test_text_ids_are_answered_as_texts(items, monkeypatch):
    numbers = make_item_table(items)
    texts = pa.array([f"Äpfel {n}" for n in range(NUM_ITEMS)])
    named = ItemTable(texts, numbers.rows_I, numbers.vectors_ID)
    monkeypatch.setattr("runner.serving.scorer.read_item_table", lambda _: named)
    one = Scorer(items.artifact, items._now.graphs)
    rows = item_rows(2)
    found = nearest_items(one, one.arrays("query", one.encode(rows)), NUM_ITEMS)
    best = by_hand(items, rows, 1)[0]
    assert found["top_items"][:, 0].tolist() == [f"Äpfel {ids[0]}" for ids in best]
    assert found["top_items"][0, -1] == "" and found["top_items"].dtype == object
    body, length = write_answer({}, {"top_items": found["top_items"][:1, :1]}, {"top_items": True})
    text = f"Äpfel {best[0][0]}".encode()
    assert body[length:] == len(text).to_bytes(4, "little") + text


def test_what_cannot_be_found_is_refused(items):
    def refused(request: InferRequest, scorer: Scorer = items) -> str:
        with pytest.raises(DataError) as error:
            make_work(scorer.artifact, request, 10, 30)
        return str(error.value)

    assert refused(asked("top_items")) == (
        "output 'top_items' needs parameters.top_k: how many items, 1 to 30"
    )
    for wrong in (0, 31, True, "5", 2.0):
        text = f"parameters.top_k={wrong!r}: must be a whole number of 1 to 30"
        assert refused(asked(top_k=wrong)) == text
    assert refused(asked(topk=3)) == (
        "parameters.topk: there is no such parameter; nearest: 'top_k'"
    )
    assert "leave_out: is for the nearest items" in refused(asked(leave_out=[1]))
    assert "leave_out=5: must be a list of at most 4,096" in refused(asked(top_k=3, leave_out=5))
    for wrong in ("a", 1.0, True, 2**63):
        text = f"parameters.leave_out[1]={wrong!r}: must be a whole number of 64 bits"
        assert refused(asked(top_k=3, leave_out=[7, wrong])).startswith(text)
    assert refused(asked()).endswith("needs the columns of the query alone")
    assert "none of the outputs asked for is one of top_items" in refused(asked("click", top_k=3))
    assert "no output 'top_items'" in refused(asked("top_items", top_k=3, graph="items"))
    text = "parameters.top_k: the graph 'items' finds no items; 'query' does"
    assert refused(asked(top_k=3, graph="items")) == text


def test_a_model_without_items_says_why(clicks_scorer):
    assert not {*NEAREST} & {*output_names(clicks_scorer.artifact)}
    with pytest.raises(DataError, match=r"parameters\.top_k: .* scores rows and has no vectors"):
        make_work(clicks_scorer.artifact, asked(top_k=3), 10)


def test_a_text_that_is_no_unicode_is_refused(items, monkeypatch):
    monkeypatch.setattr("runner.serving.server.nearest._item_type", lambda _: pa.string())
    given = json.loads('{"top_k": 3, "leave_out": ["\\ud83d\\ude00", "\\ud800"]}')  # a pair, a half
    with pytest.raises(DataError, match=r"leave_out\[1\]='\\ud800': must be a text of whole"):
        read_left_out(items.artifact, given)
    assert read_left_out(items.artifact, {**given, "leave_out": ["\U0001f600"]})


def test_items_of_a_model_that_was_replaced_since_it_was_loaded_are_not_searched(model, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    rows, loaded = item_rows(2).drop_columns(["item"]), Scorer.load(folder)
    items = read_items(folder / ITEMS_FILE, "")
    write_item_table(folder, replace(items, vectors_ID=-items.vectors_ID))
    with pytest.raises(UserError, match=r"items\.parquet: was changed since the model was loaded"):
        loaded.top_k(rows, 3)


def test_metadata_name_the_datatype_of_the_ids(items):
    assert describe_nearest(items.artifact) == [
        {"name": "top_items", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "top_scores", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "top_count", "datatype": "INT64", "shape": [-1]},
    ]


@pytest.mark.long
def test_a_client_of_triton_gets_the_nearest_items_through_an_index(runner, items, model, tmp_path):
    facts = make_index(open_artifact(model), tmp_path / "index", IndexSettings("exact", top_k=5))
    assert facts["leaves_out"] == "history"
    rows = item_rows(9, seed=3).drop_columns(["item"])
    ids, scores = by_hand(items, rows, 5)
    flags = ("--index", str(tmp_path / "index"), "--name", "towers", "--max-top-k", "30")
    with serving(runner, model, *flags) as server:
        for binary in (True, False):
            with triton.InferenceServerClient(server.address) as client:
                found = client.infer(
                    "towers", triton_inputs(rows, binary=binary), parameters={"top_k": 5}
                )
                outputs = client.get_model_metadata("towers")["outputs"]
            assert found.as_numpy("top_items").tolist() == ids
            np.testing.assert_allclose(found.as_numpy("top_scores"), scores, rtol=1e-5, atol=1e-6)
            assert found.as_numpy("top_count").tolist() == [5] * 9
            assert found.get_response()["parameters"] == {"index": "exact", "leaves_out": "history"}
        assert {"name": "top_items", "datatype": "INT64", "shape": [-1, -1]} in outputs
        body: dict[str, Any] = {"inputs": json_inputs(rows), "parameters": {"top_k": 31}}
        status, _, answer = request(server.address, "/v2/models/towers/infer", body)
        assert (status, "whole number of 1 to 30" in answer["error"]) == (400, True)
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "index" / "manifest.json").write_text(
        json.dumps({**manifest, "model": {**manifest["model"], "version": "other"}})
    )
    for workers in ("1", "2"):
        words = ("serve", str(model), "--port", "0", *flags, "--workers", workers)
        process = runner.run(*words)
        assert process.code == 2 and "is the index of another model" in process.text
