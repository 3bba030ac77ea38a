"""Linear weights of several tasks: their own, and those that the tasks of older runs share.

An older run is made here by taking the setting out of the configuration.
"""

from __future__ import annotations

import json

import pytest
import torch

from runner.config.compose import compose
from runner.launch.spec import run_spec
from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import TINY
from tests.whole.compare_runs import read_rows

WORDS = [word for word in TINY if not word.startswith("model.net")]
WORDS += ["model=wide_and_deep", "report=false", "trainer.max_steps=10"]
TWO = [*WORDS, "dataset.num_tasks=2"]
OLDER, SHARED = "~model.net.linear_weights", "model.net.linear_weights=shared"


def test_only_several_tasks_with_weights_of_their_own_are_signed():
    def sign(*words):
        return run_spec(compose(list(words)))

    key = "model.net.linear_weights"
    one, several = sign(*WORDS), sign(*TWO)
    assert key not in one.signature_fields
    assert one.signature == sign(*WORDS, OLDER).signature
    assert (
        several.signature_fields[key] == "own" and several.config["model"]["net"][key[10:]] is None
    )
    assert key not in sign(*TWO, OLDER).signature_fields
    signatures = {sign(*TWO, *more).signature for more in ([], [OLDER], [SHARED])}
    assert len(signatures) == 3
    assert several.signature == sign(*TWO, f"{key}=own").signature


def test_an_older_run_goes_on_with_weights_that_its_tasks_share(runner, tmp_path):
    old, whole = tmp_path / "old", tmp_path / "whole"
    runner.run(*TWO, OLDER, f"hydra.run.dir={old}").check()
    done = runner.run(*TWO, f"hydra.run.dir={old}")
    assert done.code == 2 and "model.net.linear_weights: null -> own" in done.text, done.text
    runner.run("resume", str(old), "trainer.max_steps=20").check()
    runner.run(*TWO, SHARED, "trainer.max_steps=20", f"hydra.run.dir={whole}").check()
    saved = [open_checkpoint(run / "checkpoints" / "step-20") for run in (old, whole)]
    names = [n for n in tensor_shapes(saved[0]) if n.startswith(("tables/", "dense/"))]
    ours, expected = (read_tensors(s, names) for s in saved)
    assert len(ours["dense/wide.dense.weight"]) == 1
    assert all(torch.equal(ours[name], expected[name]) for name in names)
    runner.run("loop=eval", f"run={old}", f"hydra.run.dir={tmp_path / 'eval'}").check()
    found, trained = (json.loads((f / "result.json").read_text()) for f in (tmp_path / "eval", old))
    assert found["metrics"].items() <= trained["metrics"].items()


def test_a_bare_checkpoint_of_shared_weights_names_the_setting_that_takes_it(runner, tmp_path):
    runner.run(*TWO, OLDER, f"hydra.run.dir={tmp_path / 'old'}").check()
    words = [*TWO, "loop=eval", f"checkpoint.path={tmp_path / 'old/checkpoints/step-10'}"]
    done = runner.run(*words, f"hydra.run.dir={tmp_path / 'own'}")
    assert done.code == 2 and "model.net.linear_weights=shared takes it" in done.text, done.text
    runner.run(*words, SHARED, f"hydra.run.dir={tmp_path / 'shared'}").check()


@pytest.mark.long
@pytest.mark.parametrize("words", [["trainer.num_processes=2"], ["trainer.num_threads=2"]])
def test_ranks_and_threads_train_weights_of_each_task_alike(runner, tmp_path, words):
    rows = []
    for name, more in (("one", ["trainer.num_threads=1"]), ("two", words)):
        if "trainer.num_processes=2" in more:
            more = [*more, "trainer.batch_size=32"]
        given = [*TWO, "trainer.batch_size=64", *more, "optimizer.sparse.lr=0.1"]
        runner.run(*given, f"hydra.run.dir={tmp_path / name}").check()
        rows.append(read_rows(tmp_path / name, "validation")[-1])
    for key in ("loss/label", "loss/label_2"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-5)
