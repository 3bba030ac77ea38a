"""Whole runs with tables of any width, and with L2 of embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import TINY
from tests.whole.compare_runs import newest_checkpoint, read_rows
from tests.whole.test_exact_resume import assert_same, train

TWO = ("trainer.num_processes=2", "trainer.rank_timeout_s=30", "trainer.batch_size=16")
OPTIONS = {
    "width 10": ("model.net.embedding_dim=10",),
    "width 10 of every row": (
        "model.net.embedding_dim=10",
        "optimizer=adam",
        "optimizer.sparse.every_row=true",
        "optimizer.sparse.l2_tables=0.001",
    ),
    "caught up": ("optimizer=sgd", "optimizer.sparse.l2_tables=0.05", "model.net.embedding_dim=10"),
    "look-ups": ("optimizer=adagrad", "optimizer.sparse.l2_lookups=0.01"),
    "bf16": ("optimizer=adam", "optimizer.sparse.dtype=bf16", "model.net.embedding_dim=10"),
    "disk": ("sharding=disk", "dataset.max_cardinality=5000"),
    "some on disk, in fp16": (
        "optimizer=partial_rowwise_adam",
        "optimizer.sparse.dtype=fp16",
        "sharding.tables={C1: disk, C3: disk}",
        "model.net.embedding_dim=10",
    ),
}
SLOW = ("bf16", "disk", "some on disk, in fp16")
STOP = "trainer.max_steps=17"


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.slow] if name in SLOW else [], id=name)
        for name, words in OPTIONS.items()
    ],
)
def test_a_run_killed_and_resumed_equals_one_never_killed(runner, tmp_path, words):
    run, whole = tmp_path / "run", tmp_path / "whole"
    words = (*words, "trainer.max_steps=30")
    train(runner, whole, *words).check()
    train(runner, run, *words, kill="step:17").check(-9)
    train(runner, run, *words).check()
    assert_same(run, whole)


def tables(folder: Path) -> dict[str, torch.Tensor]:
    saved = open_checkpoint(newest_checkpoint(folder))
    names = [name for name in tensor_shapes(saved) if name.startswith("tables/")]
    return read_tensors(saved, names)


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    ["row_wise", "table_wise", "data_parallel", pytest.param("disk", marks=pytest.mark.slow)],
)
def test_width_10_trains_alike_on_two_ranks_and_resumes_on_one(runner, tmp_path, plan):
    words = (*TINY, "model.net.embedding_dim=10")
    one, two = tmp_path / "one", tmp_path / "two"
    runner.run(*words, STOP, f"hydra.run.dir={one}").check()
    runner.run(*words, STOP, *TWO, f"sharding={plan}", f"hydra.run.dir={two}").check()
    shards = json.loads((two / "sharding.json").read_text())["pieces"]
    assert {shard["num_columns"] for shard in shards} == {10}
    ours, theirs = tables(two), tables(one)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5)
    assert theirs["tables/C1/weight"].shape[1] == 10
    runner.run("resume", str(two), "trainer.max_steps=20", "trainer.num_processes=1").check()


@pytest.mark.long
def test_an_evaluation_of_caught_up_tables_repeats_that_of_the_training(runner, tmp_path):
    run, own = tmp_path / "run", tmp_path / "eval"
    words = (*OPTIONS["caught up"], "trainer.max_steps=22")
    runner.run(*TINY, *words, f"hydra.run.dir={run}").check()
    words = ("checkpoint.step=last", "loop.split=validation", f"hydra.run.dir={own}")
    runner.run("loop=eval", f"run={run}", *words).check()
    [logged] = [r for r in read_rows(run, "validation") if r["step"] == 22]
    metrics = json.loads((own / "result.json").read_text())["metrics"]
    for name in ("loss", "auc", "calibration"):
        assert metrics[f"validation/{name}"] == logged[name], name


@pytest.mark.long
def test_caught_up_tables_resume_on_another_number_of_ranks(runner, tmp_path):
    words = (*TINY, *OPTIONS["caught up"])
    one, two = tmp_path / "one", tmp_path / "two"
    runner.run(*words, "trainer.max_steps=20", f"hydra.run.dir={one}").check()
    runner.run(*words, STOP, *TWO, "sharding=row_wise", f"hydra.run.dir={two}").check()
    runner.run("resume", str(two), "trainer.max_steps=20", "trainer.num_processes=1").check()
    ours, theirs = tables(two), tables(one)
    assert ours.keys() == theirs.keys()
    assert 0.9 < float(theirs["tables/C1/scale"]) < 1
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("optimizer=adam", "optimizer.sparse.l2_tables=0.1"), "optimizer.sparse.every_row=true"),
        (("optimizer.sparse.l2=0.1",), "there are three: l2_tables"),
        (("optimizer.sparse.l2_lookup=0.1",), "nearest: 'l2_lookups'"),
        (("optimizer.sparse.every_row=1",), "expected true or false"),
        (("optimizer.sparse.l2_lookups=nan",), "must be at least 0 and finite"),
        (("model.net.embedding_dim={default: 8, C1: 0}",), "embedding_dim.C1=0: must be"),
        (
            ("optimizer.sparse.every_row=true", "trainer.num_processes=2", "sharding=column_wise"),
            "optimizer.sparse.every_row=true our own exchange",
        ),
        (
            ("optimizer.sparse.dtype=bf16", "trainer.num_processes=2", "sharding=column_wise"),
            "optimizer.sparse.dtype=bf16 our own exchange",
        ),
        (("optimizer.sparse.dtype=fp8",), "must be one of fp32, bf16, fp16"),
        (
            ("optimizer.sparse.every_row=true", "sharding.tables={C1: disk}"),
            "sharding.tables.C1=disk: with optimizer.sparse.every_row=true every update would",
        ),
        (("optimizer=sgd", "optimizer.sparse.l2_tables=0.1", "sharding=disk"), "l2_lookups works"),
        (("loop=tune_lr", "sharding=disk"), "the tuning loops keep a copy of all tables"),
        (
            (
                "optimizer.sparse.every_row=true",
                "trainer.num_processes=2",
                "trainer.pipeline=sparse_dist",
            ),
            "with optimizer.sparse.every_row=true and these plans our own exchange",
        ),
    ],
)
def test_what_would_be_ignored_is_refused_before_torch(runner, tmp_path, words, says):
    assert says in runner.run(*TINY, *words, f"hydra.run.dir={tmp_path / 'run'}").check(2).text
    assert not (tmp_path / "run").exists()


def test_a_penalty_on_frozen_tables_is_refused(runner, tmp_path):
    words = ("optimizer=lbfgs", "optimizer.sparse.l2_tables=0.1")
    done = runner.run(*TINY, *words, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "optimizer.sparse.l2_tables: has no effect: optimizer.parts freezes all" in done.text


def test_parts_with_different_penalties_on_look_ups_are_refused(runner, tmp_path):
    part = 'optimizer.parts=[{pattern: "^tables.C1$", sparse: {l2_lookups: 0.1}}]'
    done = runner.run(*TINY, part, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "l2_lookups: the tables have 0 and 0.1" in done.text
