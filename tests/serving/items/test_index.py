"""Indexes of items: what they find, what is measured of it, and where they are searched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.errors import UserError
from runner.serving.artifact.folder import open_artifact, write_manifest
from runner.serving.index import build_index
from runner.serving.index.build_index import IndexSettings, describe_index, make_index
from runner.serving.items.item_index import ItemIndex, open_index, search_exactly
from runner.serving.items.item_table import ItemTable, read_item_table, read_queries
from runner.serving.items.item_vectors import make_item_table
from runner.serving.scorer import Scorer
from tests.whole.test_items import FULL, NUM_ITEMS, SETTINGS, beauty  # noqa: F401  (a fixture)


def done(runner, *words: object) -> str:
    process = runner.run(*map(str, words)).check()
    return process.text


def refused(runner, *words: object) -> str:
    process = runner.run(*map(str, words)).check(2)
    return process.text


@pytest.fixture(scope="module")
def run(runner, beauty, tmp_path_factory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("items")
    words = (*SETTINGS, beauty, "model=sasrec", "model.net.uniform=9", *FULL, "report=false")
    done(runner, *words, f"hydra.run.dir={folder / 'run'}")
    return folder / "run"


@pytest.fixture(scope="module")
def model(runner, run) -> Path:
    done(runner, "export", run, "--out", run.parent / "model")
    return run.parent / "model"


@pytest.fixture(scope="module")
def rows(run) -> Path:
    random = np.random.default_rng(1)
    histories = [random.permutation(np.arange(1, NUM_ITEMS))[: n % 6].tolist() for n in range(70)]
    item = random.integers(1, NUM_ITEMS, 70)
    table = pa.table({"user": np.arange(70) % 90, "item": item, "history": histories})
    pq.write_table(table, run.parent / "rows.parquet")
    return run.parent / "rows.parquet"


def by_hand(model: Path, rows: Path, top_k: int) -> np.ndarray:
    """The best items of all that are not in the row's history, by sorting every product."""
    scorer, table = Scorer.load(model), pq.read_table(rows)
    items_ID = scorer.vectors("items", {"item": np.arange(NUM_ITEMS)})
    scores = scorer.vectors("query", table) @ items_ID.T
    for row, history in enumerate(table["history"].to_pylist()):
        scores[row, history] = -np.inf
    return np.argsort(-scores, axis=1)[:, :top_k]


def random_items(count: int, width: int = 8, seed: int = 0) -> ItemTable:
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return ItemTable(pa.array(np.arange(count) * 10**15), np.arange(count), vectors)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_an_exact_search_sorts_all_products(count, monkeypatch):
    monkeypatch.setattr("runner.serving.items.item_index.MAX_SCORES", 900)  # several parts
    items = random_items(200)
    query = random_items(13, seed=1).vectors_ID
    found, scores = search_exactly(items.vectors_ID, query, count)
    products = np.einsum("qd,id->qi", query.astype(float), items.vectors_ID.astype(float))
    assert np.array_equal(found, np.argsort(-products, axis=1)[:, :count])
    np.testing.assert_allclose(scores, np.sort(products)[:, ::-1][:, :count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 7, 30])
def test_of_equal_items_the_first_are_found(count):
    random = np.random.default_rng(0)
    vectors_ID = random.integers(0, 3, (40, 2)).astype(np.float32)  # with products that are exact
    query_QD = random.integers(0, 3, (20, 2)).astype(np.float32)
    found, _ = search_exactly(vectors_ID, query_QD, count)
    expected = np.argsort(-(query_QD @ vectors_ID.T), axis=1, kind="stable")[:, :count]
    assert np.array_equal(found, expected)


def test_what_was_seen_is_left_out_and_too_few_items_leave_gaps():
    items = ItemTable(pa.array(["a", "b", "c"]), np.array([2, 3, 4]), np.eye(3, dtype=np.float32))
    index = ItemIndex.exact(items)
    query = np.array([[3, 2, 1], [1, 2, 3]], np.float32)
    seen = np.array([[2, 9], [4, 3]]), np.array([1, 1])  # row 2 is "a"; the 3 does not count
    positions, scores = index.find(query, 3, seen)
    assert positions.tolist() == [[1, 2, -1], [1, 0, -1]]
    assert scores.tolist() == [[2, 1, -np.inf], [2, 1, -np.inf]]
    none = index.find(query[:0], 3, (seen[0][:0], seen[1][:0]))
    assert [found.shape for found in none] == [(0, 3), (0, 3)]


@pytest.mark.long
@pytest.mark.parity("E22")
def test_the_scorer_finds_the_best_unseen_items_with_and_without_an_index(model, rows, tmp_path):
    expected = by_hand(model, rows, 4)
    make_index(open_artifact(model), tmp_path / "exact", IndexSettings())
    table = pq.read_table(rows)
    for index in (None, tmp_path / "exact"):
        found = Scorer.load(model, index=index).top_k(table, 4)
        assert np.array_equal(found["top_items"].to_pylist(), expected)
    assert Scorer.load(model).top_k(table.drop(["item"]).slice(5, 1), NUM_ITEMS)[
        "top_items"
    ].to_pylist()[0].count(None) == len(set(table["history"][5].as_py()))


@pytest.mark.long
def test_predict_through_an_exact_index_equals_predict_without(runner, run, model, rows, tmp_path):
    done(runner, "index", model, "--out", tmp_path / "index")
    plain, through = tmp_path / "plain", tmp_path / "through"
    done(runner, "predict", run, rows, "--top-k", 6, "--out", plain)
    words = ("predict", run, rows, "--top-k", 6, "--index", tmp_path / "index", "--out", through)
    done(runner, *words)
    one, two = pq.read_table(plain), pq.read_table(through)
    assert one.column_names == two.column_names and one["top_items"].equals(two["top_items"])
    np.testing.assert_allclose(
        one["top_scores"].to_pylist(), two["top_scores"].to_pylist(), rtol=1e-5, atol=1e-6
    )
    assert np.array_equal(one["top_items"].to_pylist(), by_hand(model, rows, 6))
    shutil.copytree(tmp_path / "index", tmp_path / "moved")
    again = (*words[:6], tmp_path / "moved", *words[7:])
    assert "is complete already" in done(runner, *again)
    assert "is for --top-k" in refused(runner, "predict", run, rows, "--index", tmp_path / "index")
    assert "no index" in refused(runner, "predict", run, rows, "--top-k", 2, "--index", model)


@pytest.mark.long
def test_an_index_of_another_model_and_a_damaged_one_are_refused(
    runner, run, model, rows, tmp_path
):
    done(runner, "export", run, "--out", tmp_path / "other", "checkpoint.step=last")
    done(runner, "index", tmp_path / "other", "--out", tmp_path / "index")
    words = ("predict", run, rows, "--top-k", 2, "--out", tmp_path / "x")
    text = refused(runner, *words, "--index", tmp_path / "index")
    assert "is the index of another model: its checkpoint is" in text
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="its version is"):
        Scorer.load(model, index=tmp_path / "index")
    content = (tmp_path / "index" / "items.parquet").read_bytes()
    (tmp_path / "index" / "items.parquet").write_bytes(content[:-1] + b"x")
    with pytest.raises(UserError, match="damaged"):
        Scorer.load(tmp_path / "other", index=tmp_path / "index")


@pytest.fixture
def many(model, monkeypatch):
    """The small model's manifest over 3,000 random items, among which an index can miss some."""
    monkeypatch.setattr(build_index, "read_item_table", lambda _: random_items(3000, 16))
    monkeypatch.setattr(build_index, "read_queries", lambda _: random_items(300, 16, 1).vectors_ID)
    return open_artifact(model)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_the_recall_that_is_written_is_that_of_the_index_on_disk(many, tmp_path, kind):
    pytest.importorskip("faiss")
    recalls = []
    for wanted in (0.5, 0.99):
        out = tmp_path / f"{wanted}"
        facts = make_index(many, out, IndexSettings(kind, wanted, 20))
        index = open_index(out, {"version": many.version})
        query = random_items(300, 16, 1).vectors_ID[1::2]
        found, scores = index.find(query, 20)
        products = query @ random_items(3000, 16).vectors_ID.T
        best = np.argsort(-products, axis=1)[:, :20]
        recall = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(found, best)])
        assert facts["measured"]["recall@20"] == pytest.approx(recall, abs=1e-9)
        assert json.loads((out / "manifest.json").read_text())["measured"] == facts["measured"]
        np.testing.assert_allclose(
            scores, np.take_along_axis(products, found, 1), rtol=1e-4, atol=1e-5
        )
        assert index.ids.take(pa.array(found[0])).to_pylist() == (found[0] * 10**15).tolist()
        recalls.append(recall)
    assert 0.4 < recalls[0] < recalls[1] and recalls[1] > 0.97


def measured(exact_ms: float, recall: float = 1.0):
    """A measurement in which an approximate search takes a millisecond."""

    def measure(search, exact, query_QD, top_k):
        share, ms = (1.0, exact_ms) if search is exact else (recall, 1.0)
        times = {"ms_a_query": ms, "ms_a_query_in_batches": ms}
        return {"queries": len(query_QD), f"recall@{top_k}": share, **times}

    return measure


@pytest.mark.parametrize(
    ("exact_ms", "recall", "why"),
    [(1.0, 1.0, "it is no faster"), (5.0, 0.5, "it finds 0.5000, and --recall asks for 0.95")],
)
def test_an_index_that_is_no_better_than_an_exact_search_is_no_default(
    many, tmp_path, monkeypatch, exact_ms, recall, why
):
    pytest.importorskip("faiss")
    monkeypatch.setattr(build_index, "EXACT_UP_TO", 2999)
    monkeypatch.setattr(build_index, "measure", measured(exact_ms, recall))
    facts = make_index(many, tmp_path / "default", IndexSettings())
    assert (facts["kind"], facts["measured"]["recall@100"]) == ("exact", 1.0)
    assert facts["instead_of"]["kind"] == "hnsw" and why in facts["instead_of"]["why"]
    told = "\n".join(describe_index(facts, 0.95))
    assert "exact was chosen, not hnsw, the default for so many" in told and why in told
    assert "hnsw: 1 ms a query one by one" in told
    index = open_index(tmp_path / "default", {"version": many.version})
    assert index.kind == "exact" and not (tmp_path / "default" / "index.faiss").exists()
    asked = make_index(many, tmp_path / "asked", IndexSettings("hnsw"))
    assert (asked["kind"], asked["instead_of"]) == ("hnsw", {})
    told = "\n".join(describe_index(asked, 0.95))
    assert f"the exact search: {exact_ms:g} ms" in told
    assert ("no faster than the exact" in told) == (exact_ms == 1)
    assert ("recall is below --recall 0.95" in told) == (recall < 0.95)


def test_a_million_items_are_searched_exactly_unless_there_are_more(many, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    assert make_index(many, tmp_path / "a", IndexSettings())["kind"] == "exact"
    monkeypatch.setattr(build_index, "EXACT_UP_TO", 2999)
    monkeypatch.setattr(build_index, "measure", measured(exact_ms=2.0))
    assert make_index(many, tmp_path / "b", IndexSettings())["kind"] == "hnsw"
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    with pytest.raises(UserError, match=r"pip install 'runner\[ann\]'"):
        make_index(many, tmp_path / "c", IndexSettings())
    with pytest.raises(UserError, match=r"pip install 'runner\[ann\]'"):
        open_index(tmp_path / "b", {})
    assert not (tmp_path / "c").exists()


@pytest.mark.long
def test_an_evaluation_goes_through_the_index_as_it_is_served(
    runner,
    run,
    model,
    beauty,  # noqa: F811
    tmp_path,
):
    """A test item that its user had before is ranked by loop=eval, and never served."""
    keys = ("index", model, "--evaluate", run)
    text = done(runner, *keys, "--out", tmp_path / "index")
    measured = json.loads((tmp_path / "index" / "manifest.json").read_text())["measured"]
    evaluation = measured["evaluation"]
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    names = ("recall@5", "ndcg@5", "hit_rate@5", "mrr")
    assert evaluation["evaluated"] == {name: metrics[f"test/{name}"] for name in names}
    users = [
        [int(n) for n in line.split()[1:]]
        for line in Path(beauty.partition("=")[2]).read_text().splitlines()
    ]
    rows = {"item": [u[-1] for u in users], "history": [u[-6:-1] for u in users]}
    rows["user"] = list(range(len(users)))
    pq.write_table(pa.table(rows), tmp_path / "test.parquet")
    best = by_hand(model, tmp_path / "test.parquet", 100)
    unseen = [item not in history for item, history in zip(rows["item"], rows["history"])]
    assert 0 < sum(unseen) < len(users)
    rank = np.array([list(b).index(item) + 1 for item, b in zip(rows["item"], best)], float)
    rank[~np.array(unseen)] = np.inf
    assert evaluation["through_index"]["recall@5"] == np.mean(rank <= 5)
    assert evaluation["through_index"]["mrr"] == pytest.approx(np.mean(1 / rank))
    assert f"test recall@5 {metrics['test/recall@5']:.6f} with all items" in text
    native = shutil.copytree(model, tmp_path / "native")
    for path in native.glob("*.pt2"):
        shutil.copy(path, path.with_suffix(".aoti.pt2"))
    facts = json.loads((native / "manifest.json").read_text())
    facts = {k: v for k, v in facts.items() if k not in ("files", "version")}
    for formats in (["aoti"], ["aoti", "pt2"]):  # of which the machine code could not be loaded
        write_manifest(native, {**facts, "formats": formats})
        words = ("index", native, "--evaluate", run, "--out", tmp_path / "native_index")
        text = refused(runner, *words) if formats == ["aoti"] else done(runner, *words)
        assert ("holds machine code, which runs with all your rights" in text) == (
            formats == ["aoti"]
        )
    rows_only = ("metrics.candidates=rows", "metrics.eval=[auc]")
    monitor = "checkpoint.monitor.metric=validation/auc"
    text = refused(runner, *keys, "--out", tmp_path / "x", *rows_only, monitor)
    assert "does not rank all items" in text
    meta = run / "meta.json"
    before = meta.read_text()
    meta.write_text(before.replace(json.loads(before)["identity"]["data"], "x"))
    text = done(runner, *keys, "--out", tmp_path / "changed")
    meta.write_text(before)
    assert "have changed since the run was trained on them" in text


@pytest.mark.long
def test_texts_stay_texts(runner, tmp_path):
    random, lines = np.random.default_rng(0), ["click,user,fruit"]
    for _ in range(400):
        lines.append(f"{random.integers(2)},u{random.integers(9)},fruit {random.integers(12)}")
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "clicks.yaml").write_text(
        "{labels: [click], categorical: {user: {encode: vocabulary}, fruit: {encode: vocabulary}}}"
    )
    done(
        *(runner, "dataset=csv", f"dataset.path={tmp_path / 'clicks.csv'}"),
        f"dataset.schema={tmp_path / 'clicks.yaml'}",
        "dataset.split={random: {train: 0.6, validation: 0.2, test: 0.2}}",
        *("model=two_tower", "model.net.item=[fruit]", "model.net.embedding_dim=4"),
        *("trainer.max_steps=3", "trainer.batch_size=32", "trainer.num_threads=1", "report=false"),
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    done(runner, "export", tmp_path / "run", "--out", tmp_path / "model")
    scorer = Scorer.load(tmp_path / "model")
    found = scorer.top_k({"user": ["u3", "nobody"]}, 12)["top_items"].to_pylist()
    assert [set(items) for items in found] == [{f"fruit {n}" for n in range(12)}] * 2
    items = read_item_table(scorer.artifact)
    named = dict(zip(items.ids.to_pylist(), items.vectors_ID))
    own = scorer.vectors("items", {"fruit": ["fruit 7", "fruit 0"]})
    expected = np.stack([named["fruit 7"], named["fruit 0"]])
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-7)  # of a matrix of another size
    again = make_item_table(scorer)  # without the texts, their hashes
    assert pa.types.is_int64(again.ids.type) and np.array_equal(again.vectors_ID, items.vectors_ID)
    assert len(read_queries(scorer.artifact)) > 10


def test_mistakes_are_told(runner, model, tmp_path):
    assert "nearest: 'hnsw'" in refused(runner, "index", model, "--kind", "hsnw")
    assert "name an exported model" in refused(runner, "index")
    assert "no exported model" in refused(runner, "index", tmp_path)
    assert "--recall 1.5" in refused(runner, "index", model, "--recall", 1.5)
    assert "exists already" in refused(runner, "index", model, "--out", tmp_path)
    assert "settings are those of --evaluate" in refused(runner, "index", model, "loop.split=test")
    assert "nearest: '--recall'" in refused(runner, "index", model, "--recal", 1)


def test_the_help_names_the_folder_that_is_written(runner, model):
    shown = " ".join(done(runner, "index", "--help").split())
    assert "default: MODEL.KIND, or MODEL.index without --kind" in shown
    assert f"wrote {model}.index;" in done(runner, "index", model)
