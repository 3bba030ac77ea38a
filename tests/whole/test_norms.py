"""Batch norm in whole runs: killed and resumed, evaluated, on two ranks, compiled."""

from __future__ import annotations

import json

import pytest

from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import TINY
from tests.whole.compare_runs import assert_resumes_exactly, newest_checkpoint

NORM = ("model.net.norm=batch", "model.net.activation=dice", "optimizer=sgd")


def metrics(run) -> dict[str, float]:
    return json.loads((run / "result.json").read_text())["metrics"]


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("trainer.accumulate=2", "model.net.norm_scope=micro_batch")])
def test_a_run_killed_and_resumed_equals_one_never_killed(runner, tmp_path, more):
    words = (*TINY, *NORM, "trainer.ema.decay=0.9", "model.net.dropout=0.1", *more)
    whole = tmp_path / "whole"
    assert_resumes_exactly(runner, words, tmp_path / "killed", whole, "step:13")
    shapes = tensor_shapes(open_checkpoint(newest_checkpoint(whole)))
    assert "dense/top.1.running_var" in shapes and "ema/top.1.running_var" in shapes
    assert not any("seen" in name for name in shapes)


@pytest.mark.long
@pytest.mark.parametrize("model", ["edcn", "afn"])
def test_a_model_with_an_inner_norm_resumes_exactly(runner, tmp_path, model):
    data = (word for word in TINY if not word.startswith("model."))
    words = (*data, f"model={model}", "model.net.embedding_dim=4", "optimizer=sgd")
    whole = tmp_path / "whole"
    assert_resumes_exactly(runner, words, tmp_path / "killed", whole, "step:13")
    counts = [n for n in tensor_shapes(open_checkpoint(newest_checkpoint(whole))) if "num_up" in n]
    assert len(counts) == {"edcn": 6, "afn": 2}[model]


@pytest.mark.long
def test_an_evaluation_takes_the_running_statistics_whatever_its_batch_size(runner, tmp_path):
    run = tmp_path / "run"
    runner.run(*TINY, *NORM, f"hydra.run.dir={run}").check()
    for size in (1, 7, 64):
        out = tmp_path / str(size)
        runner.run(
            "loop=eval", f"run={run}", f"trainer.batch_size={size}", f"hydra.run.dir={out}"
        ).check()
        for name in ("test/auc", "test/log_loss"):
            assert metrics(out)[name] == pytest.approx(metrics(run)[name], abs=1e-6)


@pytest.mark.long
def test_two_ranks_and_micro_batches_learn_what_one_process_does(runner, tmp_path):
    """With the same signature, and a note that the micro-batches run as one."""
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    words = (*TINY, *NORM, "trainer.max_steps=12")
    one = ("trainer.batch_size=64",)
    parts = ("trainer.batch_size=16", "trainer.accumulate=2", "trainer.num_processes=2")
    for run, more in ((alone, one), (cut, parts)):
        done = runner.run(*words, *more, f"hydra.run.dir={run}").check()
    assert (
        "the 2 micro-batches of an update go through the dense layers as one"
        in done.text.replace("\n", " ")
    )
    signatures = [json.loads((run / "meta.json").read_text())["signature"] for run in (alone, cut)]
    assert signatures[0] == signatures[1]
    ours, theirs = (open_checkpoint(newest_checkpoint(run)) for run in (cut, alone))
    names = [n for n in tensor_shapes(theirs) if n.startswith("dense/")]
    assert sum("running" in n for n in names) == 10, "two norms, three Dices"
    for name, tensor in read_tensors(theirs, names).items():
        other = read_tensors(ours, [name])[name]
        assert (other - tensor).abs().max() < 2e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "dice"])
def test_a_compiled_run_equals_an_eager_one_to_rounding(runner, tmp_path, activation):
    words = (*TINY, *NORM, "trainer.max_steps=12", f"model.net.activation={activation}")
    for name, compiled in (("eager", "false"), ("compiled", "true")):
        run = f"hydra.run.dir={tmp_path / name}"
        runner.run(*words, f"trainer.compile={compiled}", run).check()
    ours, theirs = (metrics(tmp_path / name) for name in ("compiled", "eager"))
    assert ours["test/log_loss"] == pytest.approx(theirs["test/log_loss"], abs=1e-5)
