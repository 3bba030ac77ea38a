"""Which users like which items is found by the two commands, and served as it was evaluated."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.mark.parametrize("label", ["click", "rating"])
def test_planted_factors_are_found_and_exported(tmp_path, runner, label):
    rng = np.random.default_rng(4)
    users, items = rng.integers(0, 120, 30_000), rng.integers(0, 80, 30_000)
    of_users, of_items = rng.normal(size=(120, 2)), rng.normal(size=(80, 2))
    score = 1.5 * (of_users[users] * of_items[items]).sum(1)
    y = rng.random(30_000) < 1 / (1 + np.exp(-score)) if label == "click" else score
    y = y.astype(np.int64) if label == "click" else 20 + 5 * (y + rng.normal(size=30_000))
    table = pa.table({"user_id": users, "item_id": items, label: y})
    pq.write_table(table, tmp_path / "rows.parquet")
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = ("schema", str(tmp_path / "rows.parquet"), "--label", label)
    words += ("--out", str(tmp_path / "s.yaml"))
    shown = runner.run(*words, env=env).check().text
    command = shlex.split(shown.rpartition("next: python -m runner ")[2])
    run = tmp_path / "run"
    more = ("trainer.num_threads=1", "trainer.max_epochs=12", f"hydra.run.dir={run}")
    runner.run(*command, *more, env=env).check()
    result = json.loads((run / "result.json").read_text())
    yardstick = result["yardstick"]["metrics"]
    if label == "click":  # of the planted score itself it is 0.77
        assert result["metrics"]["test/auc"] > 0.72 > 0.55 > yardstick["test/auc"]
    else:
        assert result["metrics"]["test/mse"] < 0.5 * yardstick["test/mse"]
    shown = runner.run("export", str(run), "--out", str(tmp_path / "model"), env=env).check().text
    assert "the same exported" in shown
