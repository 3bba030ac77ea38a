"""Every model and loss of the command line in a whole run, and what is refused before one."""

from __future__ import annotations

import re

import pytest
import yaml

from runner.rundir.checkpoint import open_checkpoint, tensor_shapes
from tests.conftest import TINY
from tests.models.scene import MODELS
from tests.whole.compare_runs import assert_resumes_exactly, newest_checkpoint, read_result

DATA = tuple(word for word in TINY if not word.startswith("model."))
SMALL = ("trainer.max_steps=5", "model.net.embedding_dim=4")


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_and_evaluates(runner, tmp_path, name):
    run = tmp_path / "run"
    runner.run(*DATA, f"model={name}", *SMALL, f"hydra.run.dir={run}").check()
    found = read_result(run)
    assert (found["status"], found["step"]) == ("completed", 5)
    assert 0.3 < found["metrics"]["test/auc"] < 1


@pytest.mark.parametrize("name", ["deepfm", "masknet", "ple"])
def test_every_model_works_with_micro_batches_autocast_and_exact_tables(runner, tmp_path, name):
    runner.run(
        *DATA,
        f"model={name}",
        *SMALL,
        "trainer.amp=true",
        "trainer.accumulate=2",
        "optimizer=adam",
        f"hydra.run.dir={tmp_path / 'run'}",
    ).check()


@pytest.mark.parametrize("name", ["bce", "by_kind", "focal", "jrc", "uncertainty"])
def test_a_loss_is_chosen_for_any_model_and_recorded(runner, tmp_path, name):
    run = tmp_path / "run"
    runner.run(
        *DATA, "model=wide_and_deep", f"model/loss={name}", *SMALL, f"hydra.run.dir={run}"
    ).check()
    target = yaml.safe_load((run / "config.yaml").read_text())["model"]["loss"]["_target_"]
    assert target.removeprefix("runner.models.losses.").lower() == name.replace("_", "")


@pytest.mark.long
def test_what_a_loss_learns_is_saved_and_a_killed_run_equals_one_never_killed(runner, tmp_path):
    words = (*DATA, "model=mmoe", "model/loss=uncertainty", "optimizer=adam", *SMALL)
    words = (*words, "trainer.max_steps=20")
    whole = tmp_path / "whole"
    assert_resumes_exactly(runner, words, tmp_path / "killed", whole, "step:13")
    shapes = tensor_shapes(open_checkpoint(newest_checkpoint(whole)))
    assert shapes["dense/loss.log_variances"] == (1,)
    assert shapes["dense_optimizer/loss.log_variances/exp_avg"] == (1,)


REFUSED = {
    "no such loss": (("model/loss=focl",), "model/loss=focl: no such option.*nearest: 'focal'"),
    "no key of this loss": (
        ("model/loss=focal", "model.loss.gama=1"),
        "nearest: 'model.loss.gamma",
    ),
    "a value given to the loss": (("model.loss=focal",), "perhaps model/loss=focal"),
    "loss without its group": (("loss=focal",), "perhaps model/loss=focal"),
    "a task of another kind": (("model/loss=mse",), "'label' is binary.*by_kind"),
    "a group column it lacks": (("model/loss=jrc", "model.loss.group=user"), "it has none"),
    "one feature": (
        ("model=deepfm", "dataset.num_numeric=0", "dataset.num_single=1", "dataset.num_lists=0"),
        "model.net: needs at least 2 features to join; the dataset has C1",
    ),
    "a feature it lacks": (
        ("model=finalmlp", "model.net.contexts=[[C1],[D2]]"),
        "no sparse feature 'D2'; nearest: 'C2'",
    ),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_training(runner, tmp_path, words, message):
    done = runner.run(*DATA, *words, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert re.search(message, done.text.replace("\n", " ")), done.text
