"""Warm start: weights of another run, step 0, and a report of what matched."""

from __future__ import annotations

import json

from runner.checkpoint import open_checkpoint, read_tensors
from tests.conftest import TINY
from tests.whole.identity import newest


def first_loss(run) -> float:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]


def test_it_takes_the_weights_that_match_and_reports_the_rest(runner, tmp_path):
    source, warm, cold = tmp_path / "source", tmp_path / "warm", tmp_path / "cold"
    settings = (*TINY, "trainer.max_steps=80", "trainer.log_every=1")
    assert runner.run(*settings, f"hydra.run.dir={source}").code == 0
    assert runner.run(*settings, f"hydra.run.dir={cold}", "seed=5", "model.net.top=[6]").code == 0
    done = runner.run(
        *settings,
        f"hydra.run.dir={warm}",
        "seed=5",
        "model.net.top=[6]",
        f"checkpoint.init_from={source}",
    )
    assert done.code == 0, done.text
    assert "warm start" in done.text
    assert "shape differs: dense/top.0.weight" in done.text
    assert json.loads((warm / "result.json").read_text())["step"] == 80
    assert first_loss(warm) < first_loss(cold)


def test_with_nothing_learnt_it_is_the_source(runner, tmp_path):
    source, warm = tmp_path / "source", tmp_path / "warm"
    settings = (*TINY, "optimizer=sgd")
    assert runner.run(*settings, f"hydra.run.dir={source}").code == 0
    step = json.loads((source / "result.json").read_text())["best"]["step"]
    frozen = ("optimizer.sparse.lr=0", "optimizer.dense.lr=0", "trainer.max_steps=1", "seed=9")
    done = runner.run(*settings, *frozen, f"hydra.run.dir={warm}", f"checkpoint.init_from={source}")
    assert done.code == 0, done.text
    ours = open_checkpoint(newest(warm))
    theirs = open_checkpoint(source / "checkpoints" / f"step-{step}")
    names = ["dense/top.0.weight", "tables/C1/weight"]
    a, b = read_tensors(ours, names), read_tensors(theirs, names)
    assert all((a[n] == b[n]).all() for n in names)


def test_a_source_of_another_model_is_refused(runner, tmp_path):
    source = tmp_path / "source"
    assert runner.run(*TINY, f"hydra.run.dir={source}").code == 0
    other = ("model.net.embedding_dim=8", "model.net.bottom=[9]", "model.net.top=[9]")
    done = runner.run(
        *TINY, *other, f"checkpoint.init_from={source}", f"hydra.run.dir={tmp_path / 'x'}"
    )
    assert done.code == 2, done.text
    assert "init_from" in done.text
