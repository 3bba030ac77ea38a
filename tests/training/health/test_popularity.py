"""Popularity beside a retrieval model, ranked as the model's own evaluations rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from runner.batch import SparseFeature
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.distributed.ranks import Ranks
from runner.metrics.settings import MetricSettings
from runner.models.retrieval.negatives import NegativeSampler
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.training.catalogue import count_ids_for_model, count_item_popularity
from runner.training.health.popularity import describe_own, rank_by_count
from tests.conftest import Zygote

ITEMS = 30


class Catalogue(RetrievalModel):
    """What `rank_in_catalogue` needs, with the items' counts as their vectors."""

    history = "history"

    def __init__(self, counts_I: np.ndarray, *, excludes_history: bool) -> None:
        torch.nn.Module.__init__(self)
        self.items_ID = torch.from_numpy(counts_I)[:, None].float()
        self.excludes_history = excludes_history
        self.eval()

    def query_vectors(self, *given):
        raise AssertionError

    item_vectors = dense = query_vectors


class NextItems(Catalogue):
    """What counts the ids that `NextItemModel` counts."""

    target_features = ("item", "history")


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("num_special", [0, 2])
def test_ranks_by_counts_are_those_of_a_model_whose_scores_are_the_counts(leave_out, num_special):
    rng = np.random.default_rng(0)
    counts_I = rng.integers(0, 5, ITEMS).astype(float)  # many are equal
    item_B, lengths_B = rng.integers(0, ITEMS, 200), rng.integers(0, 8, 200)
    ids_BL = rng.integers(0, ITEMS, (200, 8))
    ids_BL[:50, 0] = item_B[:50]  # the item itself is in its history, and some ids are there twice
    model = Catalogue(counts_I, excludes_history=leave_out)
    model.item = SparseFeature("item", ITEMS, num_special=num_special)
    per_row = {
        "history:length": torch.from_numpy(lengths_B),
        "history:ids": torch.from_numpy(ids_BL),
    }
    rows, seen_ids = torch.arange(200), rng.integers(0, ITEMS, 60)
    seen_rows = rng.integers(0, 200, 60)
    model.seen_items = lambda rows_B: (torch.from_numpy(seen_rows), torch.from_numpy(seen_ids))
    theirs = model.rank_in_catalogue(torch.ones(200, 1), torch.from_numpy(item_B), per_row, rows)
    rows_L = np.repeat(np.arange(200), lengths_B)
    ids_L = ids_BL[np.arange(8) < lengths_B[:, None]]
    if not leave_out:
        rows_L, ids_L = rows_L[:0], ids_L[:0]
    rows_L, ids_L = np.append(rows_L, seen_rows), np.append(ids_L, seen_ids)
    ours = rank_by_count(counts_I, item_B, rows_L, ids_L, num_special)
    np.testing.assert_array_equal(ours, theirs["rank_B"].numpy())
    is_own = np.bincount(rows_L[ids_L == item_B[rows_L]], minlength=200) > 0
    np.testing.assert_array_equal(np.isinf(ours), is_own | (item_B < num_special))


@pytest.mark.parametrize("train_on", ["every", "windows", "last"])
def test_each_train_event_says_once_how_popular_its_item_is(tmp_path, monkeypatch, train_on):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(3)
    users = [rng.integers(0, ITEMS, rng.integers(2, 20)).tolist() for _ in range(40)]
    events = [(u, i, t) for u, items in enumerate(users) for t, i in enumerate(items)]
    table = pa.table(list(map(pa.array, zip(*events))), ["user", "item", "time"])
    pq.write_table(table, tmp_path / "events.parquet")
    declared = {"user": "user", "item": "item", "time": "time", "train_on": train_on}
    schema = {
        "interactions": declared,
        "categorical": {"user": {"num_rows": len(users)}, "item": {"num_rows": ITEMS}},
    }
    path = str(tmp_path / "events.parquet")
    dataset = open_table(TableRecipe("parquet", path, schema, split=None))
    model = NextItems(np.zeros(ITEMS), excludes_history=True)
    model.item, model.negatives = SparseFeature("item", ITEMS), NegativeSampler(ITEMS, popularity=1)
    settings = MetricSettings(eval=["novelty@3"], train=[], candidates="full")
    count_item_popularity(model, dataset, Ranks(), settings)
    count_ids_for_model(model, dataset, Ranks())  # by which negatives are drawn
    first = 1 if train_on == "every" else 0  # the first event of a user is no row
    expected = np.bincount([i for items in users for i in items[first:]], minlength=ITEMS)
    # an item of first events alone is no cold one
    is_seen_I = np.bincount([i for items in users for i in items], minlength=ITEMS) > 0
    expected = np.maximum(expected, 1) * is_seen_I
    np.testing.assert_array_equal(model.popularity_I, expected)
    np.testing.assert_array_equal(model.negatives.counts_I, expected)
    model.item = SparseFeature("item", ITEMS, num_special=2)  # unknown and missing values
    count_item_popularity(model, dataset, Ranks(), settings)
    np.testing.assert_array_equal(model.popularity_I, [0, 0, *expected[2:]])


def write_beauty(folder: Path) -> list[list[int]]:
    """Write users whose items are drawn with unequal popularity; return their items."""
    rng = np.random.default_rng(1)
    shares = 1 / np.arange(1, ITEMS + 1)
    users = [
        list(rng.choice(np.arange(1, ITEMS + 1), rng.integers(4, 9), False, shares / shares.sum()))
        for _ in range(120)
    ]
    lines = [" ".join(map(str, [u, *items])) for u, items in enumerate(users, 1)]
    (folder / "Beauty.txt").write_text("\n".join(lines) + "\n")
    return users


@pytest.mark.parametrize("model", ["sasrec", pytest.param("two_tower", marks=pytest.mark.slow)])
def test_a_result_has_popularity_beside_it_and_it_is_that_of_a_count_by_hand(
    runner: Zygote, tmp_path: Path, model: str
):
    users = write_beauty(tmp_path)
    run = tmp_path / "run"
    done = runner.run(
        f"model={model}",
        "dataset=amazon_beauty",
        f"dataset.path={tmp_path}",
        "dataset.negatives={train: 0, validation: 0, test: 0}",
        "trainer.batch_size=64",
        "metrics.eval=[recall@5/label,ndcg@5,coverage@5]",
        "metrics.train=[]",
        "metrics.candidates=full",
        "checkpoint.monitor={metric: validation/recall@5, direction: max}",
        "trainer.num_threads=1",
        "model.net.uniform=4",
        f"hydra.run.dir={run}",
    ).check()
    assert "for comparison was not" not in done.text
    assert "recall@5 of popularity" in done.text and "ndcg@5 of popularity" in done.text
    found = json.loads((run / "result.json").read_text())["yardstick"]
    # a row for each item from the second on, in whose histories the items before count no more
    every_row = [item for u in users for item in u[1:-2]]
    counts = np.bincount(every_row, minlength=max(map(max, users)) + 1)
    recall, ndcg = [], []
    for items in users:
        target, seen = items[-1], set(items[:-1])
        others = [i for i in range(1, ITEMS + 1) if i != target and i not in seen]
        rank = 1 + sum(counts[i] >= counts[target] for i in others)
        # row 0 of the table is no item of the file, and never counts: it is behind all that do
        rank += int(counts[target] == 0)
        recall.append(rank <= 5)
        ndcg.append((rank <= 5) / np.log2(rank + 1))
    assert found["metrics"]["test/recall@5"] == pytest.approx(np.mean(recall), abs=1e-9)
    assert found["metrics"]["test/ndcg@5"] == pytest.approx(np.mean(ndcg), abs=1e-6)
    assert (run / "report.html").read_text().count("recall@5 of popularity")


@pytest.mark.parametrize("on", [("history",), ("seen",), ("history", "seen")])
def test_the_settings_that_leave_items_out_of_their_rankings_are_named_and_no_others(on):
    keys = {f"leave_{name}_out": name in on for name in ("history", "seen")}
    settings = MetricSettings(eval=["recall@5"], train=[], candidates="full", **keys)
    [finding] = describe_own({"test": 0.25}, settings)
    assert finding.startswith("25.0% of the test rows have an item that is left out")
    named = " and ".join(f"metrics.leave_{name}_out=false" for name in on)
    assert finding.endswith(f"; to recommend such items again, set {named}")
    assert [*describe_own({"test": 0.009}, settings)] == []


@pytest.mark.long
def test_an_item_that_is_left_out_of_its_ranking_is_a_miss_as_in_the_lists_of_predict(
    runner: Zygote, tmp_path: Path
):
    rng = np.random.default_rng(2)
    users = [rng.integers(0, ITEMS, rng.integers(4, 9)).tolist() for _ in range(120)]
    lines = [f"{u},{i},{t}" for u, items in enumerate(users) for t, i in enumerate(items)]
    (tmp_path / "e.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    schema = {
        "path": "e.csv",
        "split": "leave_one_out",
        # rows of label 0 look for no item, so that none is left out of their ranking
        "interactions": {"user": "user", "item": "item", "time": "time", "negatives": {"test": 2}},
        "categorical": {n: {"encode": "vocabulary", "input": "integer"} for n in ("user", "item")},
    }
    (tmp_path / "e.yaml").write_text(json.dumps(schema))
    words = ["dataset=csv", "dataset.schema=e.yaml", "model=two_tower", "trainer.max_steps=2"]
    words += ["trainer.num_threads=1", "report=false"]
    done = runner.run(*words, "trainer.batch_size=64", "hydra.run.dir=run", cwd=tmp_path).check()
    repeated = np.mean([items[-1] in items[:-1] for items in users])
    assert f"{repeated:.1%} of the test rows have an item that is left out" in done.text
    unknown = pa.nulls(len(users))  # items that are looked for have no value, nor a type
    columns = {"user": range(len(users)), "item": unknown, "history": [s[:-1] for s in users]}
    pq.write_table(pa.table({k: pa.array(v) for k, v in columns.items()}), tmp_path / "r.parquet")
    runner.run("predict", "run", "r.parquet", "--top-k", "10", "--out", "p", cwd=tmp_path).check()
    lists = pq.read_table(tmp_path / "p")["top_items"].to_pylist()
    hits = np.array(lists) == np.array([items[-1] for items in users])[:, None]
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["test/recall@10"] == pytest.approx(hits.any(1).mean(), abs=1e-9)
    ndcg = (hits / np.log2(np.arange(2, 12))).sum(1).mean()
    assert metrics["test/ndcg@10"] == pytest.approx(ndcg, abs=1e-6)
