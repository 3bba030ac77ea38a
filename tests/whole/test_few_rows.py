"""Numbers that work together are found in few rows by the two commands, and resumed bit for bit."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PLAIN = ("model.net.members=null", "model.net.periodic=false")


@pytest.mark.long
def test_numbers_that_work_together_are_found_in_few_rows(tmp_path, runner):
    rng = np.random.default_rng(8)
    a, b, c = rng.normal(size=(3, 4000)).round(3)
    shops = rng.integers(0, 8, 4000)
    score = 3 * np.sin(2 * a) * b + 0.5 * c + rng.normal(size=8)[shops]
    label = (rng.random(4000) < 1 / (1 + np.exp(-score))).astype(np.int64)
    shop = [f"shop {n}" for n in shops]
    table = pa.table({"a": a, "b": b, "c": c, "shop": shop, "click": label})
    pq.write_table(table, tmp_path / "rows.parquet")
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = ("schema", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "s.yaml"))
    shown = runner.run(*words, env=env).check().text
    command = shlex.split(shown.rpartition("next: python -m runner ")[2])
    assert {"model.net.members=8", "model.net.periodic=true"} <= {*command}

    def train(name, *more):
        run = tmp_path / name
        more = (*more, "trainer.num_threads=1", "report=false", f"hydra.run.dir={run}")
        runner.run(*command, *more, env=env).check()
        return json.loads((run / "result.json").read_text())["metrics"]

    ours, plain = train("ours"), train("plain", *PLAIN)
    assert ours["test/log_loss"] < plain["test/log_loss"] - 0.01, (ours, plain)

    short = ("trainer.max_epochs=null", "scheduler.warmup=10", "trainer.eval_every=20")
    whole = train("whole", *short, "trainer.max_steps=60")
    train("cut", *short, "trainer.max_steps=40")
    more = ("trainer.max_steps=60", "report=false")
    runner.run("resume", str(tmp_path / "cut"), *more, env=env).check()
    assert json.loads((tmp_path / "cut" / "result.json").read_text())["metrics"] == whole
