"""Which users like which items is found by the two commands, and served as it was evaluated."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.tastes import plant


def run_two_commands(runner, folder, columns, label):
    """Return the command, and the metrics of the run and of its yardstick."""
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    env = {"RUNNER_CACHE": str(folder / "cache")}
    words = ("schema", str(folder / "rows.parquet"), "--label", label)
    words += ("--out", str(folder / "s.yaml"))
    shown = runner.run(*words, env=env).check().text
    command = shlex.split(shown.rpartition("next: python -m runner ")[2])
    run = folder / "run"
    more = ("trainer.num_threads=1", "trainer.max_epochs=12", f"hydra.run.dir={run}")
    runner.run(*command, *more, env=env).check()
    result = json.loads((run / "result.json").read_text())
    return command, result["metrics"], result["yardstick"]["metrics"]


@pytest.mark.long
@pytest.mark.parametrize("label", ["click", "rating", "spend"])
def test_planted_factors_are_found_and_exported(tmp_path, runner, label):
    rng = np.random.default_rng(4)
    users, items = rng.integers(0, 120, 30_000), rng.integers(0, 80, 30_000)
    of_users, of_items = rng.normal(size=(120, 2)), rng.normal(size=(80, 2))
    score = 1.5 * (of_users[users] * of_items[items]).sum(1)
    y = rng.random(30_000) < 1 / (1 + np.exp(-score)) if label == "click" else score
    y = y.astype(np.int64) if label == "click" else 20 + 5 * (y + rng.normal(size=30_000))
    if label == "spend":
        mean = np.exp(2 + 0.7 * rng.normal(size=120)[users] + 0.5 * score)
        y = mean * rng.gamma(3, 1 / 3, 30_000)
    columns = {"user_id": users, "item_id": items, label: y}
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, label)
    assert "model.net.pairs=fitted" in command
    if label == "click":  # of the planted score itself it is 0.77
        assert metrics["test/auc"] > 0.72 > 0.55 > yardstick["test/auc"]
    elif label == "rating":
        assert metrics["test/mse"] < 0.5 * yardstick["test/mse"]
    else:
        assert 'link: "log"' in (tmp_path / "s.yaml").read_text()
        error = np.mean(np.abs(y - mean))
        assert metrics["test/mae"] < 1.1 * error < 0.8 * yardstick["test/mae"]
    words = ("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    shown = runner.run(*words, env={"RUNNER_CACHE": str(tmp_path / "cache")}).check().text
    assert "the same exported" in shown


@pytest.mark.long
def test_tastes_of_few_rows_a_user_are_found_beside_columns_that_tell_nothing(tmp_path, runner):
    """Such a run was as good as logistic regression: pairs of all ids were learnt by heart."""
    rng = np.random.default_rng(0)
    rows, users, items = 20_000, 900, 250
    user, item = rng.integers(0, users, rows), rng.integers(0, items, rows)
    of_users, of_items = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
    score = 1.2 * (of_users[user] * of_items[item]).sum(1) + rng.normal(size=items)[item]
    columns = {
        "user_id": user,
        "item_id": item,
        "hour": [f"h{hour}" for hour in rng.integers(0, 24, rows)],
        "device": [f"d{device}" for device in rng.integers(0, 6, rows)],
        "price": np.round(np.exp(rng.normal(size=rows)), 2),
        "click": (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int64),
    }
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "click")
    assert "model.net.pairs=fitted" in command
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "factors of user_id and item_id" in log and log.count(" factors of ") == 1
    assert metrics["test/auc"] > yardstick["test/auc"] + 0.02
    assert metrics["test/log_loss"] < yardstick["test/log_loss"]
    words = ("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    shown = runner.run(*words, env={"RUNNER_CACHE": str(tmp_path / "cache")}).check().text
    assert "the same exported" in shown


@pytest.mark.long
def test_weak_tastes_leave_zero_before_the_run_ends_for_lack_of_a_gain(tmp_path, runner):
    """They are so weak that in small steps three evaluations pass without a gain."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 400, 50_000), rng.integers(0, 200, 50_000)
    of_users, of_items = rng.normal(size=(400, 4)), rng.normal(size=(200, 4))
    score = 0.45 * (of_users[users] * of_items[items]).sum(1)
    click = (rng.random(50_000) < 1 / (1 + np.exp(0.7 - score))).astype(np.int64)
    seconds = 20 + 9 * (score + rng.normal(size=50_000))
    columns = {"user_id": users, "item_id": items, "click": click, "watch_time": seconds}
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "click,watch_time")
    assert "optimizer.sparse.l2_lookups=0.02" in command
    assert metrics["test/auc"] > yardstick["test/auc"] + 0.1  # the score itself has 0.72
    assert metrics["test/rmse"] < 9.9  # the noise alone has 9, the mean 12.1


@pytest.mark.long
def test_which_items_go_with_a_history_is_found(tmp_path, runner):
    table, best = plant(60_000, 2000, 400, ("item_id", "history", "click"), 1.0)
    columns = {name: table[name] for name in table.column_names}
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "click")
    assert "optimizer.sparse.l2_lookups=0.005" in command
    assert yardstick["test/auc"] + 0.05 < metrics["test/auc"] < best
