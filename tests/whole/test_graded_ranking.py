"""Queries with graded documents: the command that `schema` prints, and the uses of its run."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import ndcg_score

from runner.serving.scorer import Scorer

NUM_QUERIES, SCALE = 400, np.array(["Bad", "Fair", "Good", "Excellent", "Perfect"])
FEATURES = [f"f{n}" for n in range(8)]


@pytest.fixture(scope="module")
def ranked(runner, tmp_path_factory):
    """A folder with a table, and the run of the command that is printed for it."""
    folder = tmp_path_factory.mktemp("ranked")
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 21, NUM_QUERIES)
    rows = lengths.sum()
    x = rng.normal(size=(rows, len(FEATURES)))
    x[:, 7] = np.repeat(rng.normal(size=NUM_QUERIES), lengths)  # of the query
    z = np.tanh(2 * x[:, 0]) + np.abs(x[:, 1]) + x[:, 2] * x[:, 7] + 0.5 * rng.normal(size=rows)
    grades = np.searchsorted(np.quantile(z, [0.5, 0.75, 0.9, 0.97]), z)
    columns = {"qid": np.repeat(np.arange(NUM_QUERIES), lengths), "doc_id": np.arange(rows)}
    columns |= {name: x[:, i].round(4) for i, name in enumerate(FEATURES)}
    table = pa.table({**columns, "click": (grades > 1) * 1, "relevance": SCALE[grades]})
    pacsv.write_csv(table, folder / "docs.csv")
    proposed = runner.run("schema", "docs.csv", "--out", "docs.yaml", cwd=folder).check().text
    words = shlex.split(" ".join(proposed.split()).partition("python -m runner ")[2])
    words = [word for word in words if not word.startswith("trainer.max_epochs")]
    words += ["hydra.run.dir=run", "trainer.yardstick=false", "trainer.max_epochs=8"]
    runner.run(*words, cwd=folder).check()
    return folder, table


def metrics_of(run) -> dict[str, float]:
    return json.loads((run / "result.json").read_text())["metrics"]


def mean_ndcg(queries, grades, scores) -> float:
    lists = [queries == query for query in np.unique(queries)]
    return np.mean(
        [
            ndcg_score([2.0 ** grades[own] - 1], [scores[own]], k=10)
            for own in lists
            if any(grades[own])
        ]
    )


@pytest.mark.long
def test_predictions_have_the_ndcg_of_the_run_and_rank_as_well_as_boosted_trees(ranked, runner):
    folder, table = ranked
    parts = {}
    for split in ("train", "test"):
        words = ("--split", split, "--keep", "doc_id", "--out", split)
        runner.run("predict", "run", *words, cwd=folder).check()
        parts[split] = pq.read_table(folder / split)
    rows = {split: part["doc_id"].cast(pa.int64()).to_numpy() for split, part in parts.items()}
    x = np.stack([table[name].to_numpy() for name in FEATURES], 1)
    grades = np.array([list(SCALE).index(text) for text in table["relevance"].to_pylist()])
    queries = table["qid"].to_numpy()
    assert not {*queries[rows["train"]]} & {*queries[rows["test"]]}
    [score] = [name for name in parts["test"].column_names if name.startswith("score")]
    judged = rows["test"]
    ours = mean_ndcg(queries[judged], grades[judged], parts["test"][score].to_numpy())
    assert metrics_of(folder / "run")["test/ndcg@10"] == pytest.approx(ours, abs=1e-6)
    trees = HistGradientBoostingRegressor(random_state=0).fit(
        x[rows["train"]], grades[rows["train"]]
    )
    assert ours > mean_ndcg(queries[judged], grades[judged], trees.predict(x[judged])) - 0.01


@pytest.mark.long
def test_its_evaluation_and_its_export_have_the_same_numbers(ranked, runner):
    folder, table = ranked
    trained = metrics_of(folder / "run")
    runner.run("loop=eval", "run=run", "hydra.run.dir=eval", cwd=folder).check()
    assert metrics_of(folder / "eval")["test/ndcg@10"] == trained["test/ndcg@10"]
    more = ("metrics.eval=[ndcg@10,mrr,recall@3]", "metrics.relevant_from=4", "hydra.run.dir=top")
    runner.run("loop=eval", "run=run", *more, cwd=folder).check()
    strict = metrics_of(folder / "top")
    assert strict["test/ndcg@10"] == trained["test/ndcg@10"] and 0.3 < strict["test/mrr"] < 1
    runner.run("export", "run", "--out", "model", cwd=folder).check()
    measured = json.loads((folder / "model" / "metrics.json").read_text())
    assert measured["formats"]["pt2"]["metrics"]["ndcg@10"] == trained["test/ndcg@10"]
    scores = Scorer.load(folder / "model").score(table.slice(0, 5).select(FEATURES))
    assert len(scores["relevance"]) == 5
