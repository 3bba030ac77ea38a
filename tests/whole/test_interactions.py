"""A stranger's file of events: two commands train SASRec, which finds what is planted."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from runner.serving.scorer import Scorer

NUM_ITEMS, NUM_USERS, LENGTH = 40, 150, 12


@pytest.fixture(scope="module")
def stranger(tmp_path_factory, runner):
    """Return a folder after the two commands; items follow each other four times in five."""
    folder = tmp_path_factory.mktemp("stranger")
    rng = np.random.default_rng(0)
    events = []
    for user in range(NUM_USERS):
        item = rng.integers(NUM_ITEMS)
        for time in range(LENGTH):
            events.append((1_600_000_000 + 3600 * time + int(rng.integers(3600)), user, item))
            item = (item + 1) % NUM_ITEMS if rng.random() < 0.8 else rng.integers(NUM_ITEMS)
    lines = [f"u{user},film {item},{time}" for time, user, item in sorted(events)]
    (folder / "views.csv").write_text("\n".join(["userId,movieId,timestamp", *lines]) + "\n")
    env = {"RUNNER_CACHE": str(folder / "cache")}
    done = runner.run("schema", "views.csv", "--out", "views.yaml", cwd=folder, env=env).check()
    command = done.text.partition("next: python -m runner ")[2].splitlines()[0].split()
    words = [w for w in command if not w.startswith(("trainer.max_steps", "trainer.eval_every"))]
    small = ("trainer.max_steps=60", "trainer.num_threads=1", "hydra.run.dir=run")
    more = ("optimizer.sparse.lr=0.01", "optimizer.dense.lr=0.01", "checkpoint.save_every=20")
    more += ("trainer.yardstick=false", "report=false")
    done = runner.run(*words, *small, *more, cwd=folder, env=env).check()
    return folder, env, done.text


@pytest.mark.long
def test_two_commands_find_what_is_planted(stranger):
    folder, _, shown = stranger
    result = json.loads((folder / "run" / "result.json").read_text())
    assert (
        result["status"] == "completed"
        and "since the model finds items, it is measured by" in shown
    )
    # the planted item ranks first in four of five events, the others are drawn from all
    assert 0.65 < result["metrics"]["test/recall@10"] <= 1
    assert 0.4 < result["metrics"]["test/ndcg@10"] < 0.95
    assert "NaN" not in json.dumps(result["metrics"])
    assert result["best"]["value"] == result["metrics"]["validation/recall@10"]


@pytest.mark.long
def test_its_evaluation_says_the_same_and_shows_lists_and_popularity(stranger, runner):
    folder, env, _ = stranger
    lists = "metrics.eval=[recall@10,ndcg@10,coverage@10,novelty@10,gini@10]"
    words = ("loop=eval", "run=run", lists, "metrics.slice_by=item_popularity")
    runner.run(*words, "hydra.run.dir=eval", cwd=folder, env=env).check()
    found = json.loads((folder / "eval" / "result.json").read_text())["metrics"]
    trained = json.loads((folder / "run" / "result.json").read_text())["metrics"]
    assert found["test/recall@10"] == trained["test/recall@10"]
    assert 0.5 < found["test/coverage@10"] <= 1 and 0 <= found["test/gini@10"] < 0.6
    assert found["test/novelty@10"] == pytest.approx(np.log2(NUM_ITEMS), abs=0.5)
    levels = {name.partition("=")[2] for name in found if "recall@10/" in name}
    assert levels and levels <= {"cold", "rare", "middle", "popular"}


def test_its_prediction_takes_raw_histories(stranger, runner):
    folder, env, _ = stranger
    rows = [{"userId": "u3", "movieId": "film 8", "history": ["film 5", "film 6", "film 7"]}]
    (folder / "ask.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = ("predict", "run", "ask.jsonl", "--out", "scores", "--top-k", "3")
    runner.run(*words, cwd=folder, env=env).check()
    written = pq.read_table(folder / "scores").to_pylist()
    [row] = written
    [best] = [values for name, values in row.items() if isinstance(values, list) and "item" in name]
    assert len(best) == 3


@pytest.mark.slow
def test_rankings_without_all_that_a_user_has_seen(stranger, runner):
    folder, env, _ = stranger
    events = [line.split(",") for line in (folder / "views.csv").read_text().splitlines()[1:]]
    past: dict[str, list[str]] = {}
    for user, item, _ in events:  # which are in the order of their times
        past.setdefault(user, []).append(item)
    counts = Counter(item for items in past.values() for item in items[1:-2])
    most = NUM_ITEMS - min(len({*items[:-1]} - {items[-1]}) for items in past.values())
    words = ("dataset=csv", "dataset.schema=short.yaml", "model=two_tower", "trainer.max_steps=2")
    words += (
        "model.net.uniform=8",
        "dataset.split=leave_one_out",
        f"metrics.eval=[recall@10,recall@{most}]",
    )
    words += ("metrics.train=[]", "metrics.candidates=full", "metrics.leave_seen_out=true")
    words += ("checkpoint.monitor.metric=validation/recall@10", "report=false")
    schema = (folder / "views.yaml").read_text()
    short = schema.replace('max_length: 50, train_on: "windows"', "max_length: 2")
    assert short != schema
    (folder / "short.yaml").write_text(short)
    runner.run(*words, "hydra.run.dir=short", cwd=folder, env=env).check()
    result = json.loads((folder / "short" / "result.json").read_text())
    # not more than this many items are left for any user, so all new ones are found
    new = np.mean([items[-1] not in items[:-1] for items in past.values()])
    assert result["metrics"][f"test/recall@{most}"] == pytest.approx(new, abs=1e-9)
    assert result["metrics"]["test/recall@10"] < new
    hits = []
    for items in past.values():
        seen, target = {*items[:-1]}, items[-1]
        others = {f"film {i}" for i in range(NUM_ITEMS)} - seen - {target}
        better = sum(counts[item] >= counts[target] for item in others)
        hits.append(target not in seen and better < 10)
    found = result["yardstick"]["metrics"]["test/recall@10"]
    assert found == pytest.approx(np.mean(hits), abs=1e-9)


@pytest.mark.slow
def test_its_export_takes_raw_histories_and_has_the_metrics_of_its_evaluation(stranger, runner):
    folder, env, _ = stranger
    runner.run("export", "run", "--out", "model", cwd=folder, env=env).check()
    measured = json.loads((folder / "model" / "metrics.json").read_text())
    trained = json.loads((folder / "run" / "result.json").read_text())["metrics"]
    for name in ("recall@10", "ndcg@10"):
        assert measured["evaluated"][name] == trained[f"test/{name}"]
        assert measured["formats"]["pt2"]["metrics"][name] == trained[f"test/{name}"]
    assert measured["formats"]["pt2"]["largest_logit_difference"] < 1e-5
    row = {"userId": "u3", "movieId": "film 8", "history": ["film 5", "film 6", "film 7"]}
    (folder / "one.jsonl").write_text(json.dumps(row))
    words = ("predict", "run", "one.jsonl", "--out", "one", "--top-k", "3")
    runner.run(*words, cwd=folder, env=env).check()
    [expected] = pq.read_table(folder / "one").to_pylist()
    found = Scorer.load(folder / "model").top_k({name: [row[name]] for name in row}, 3)
    assert all(name.startswith("film ") for name in found["top_items"][0].as_py())
    assert found["top_scores"][0].as_py() == pytest.approx(expected["top_scores"], rel=1e-5)
