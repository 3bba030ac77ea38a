"""Which settings another class of the dense optimizer takes over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError
from tests.conftest import TINY

RMSPROP = "optimizer.dense._target_=torch.optim.RMSprop"
ADAM = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


def dense(*words: str) -> tuple[dict, tuple[str, ...]]:
    composed = compose(list(words))
    check_composed(composed, ALLOWED_PACKAGES)
    return composed.config["optimizer"]["dense"], composed.notes


def test_what_the_class_does_not_take_and_nobody_gave_is_left_out_and_said():
    kept = {key: ADAM[key] for key in ("lr", "eps", "weight_decay")}
    node, notes = dense(RMSPROP)
    assert node == {"_target_": "torch.optim.RMSprop", **kept}
    [note] = notes
    assert "takes no betas, which was torch.optim.Adam's" in note
    node, _ = dense(RMSPROP, "optimizer.dense.lr=0.1", "+optimizer.dense.alpha=0.9")
    assert node == {"_target_": "torch.optim.RMSprop", **kept, "lr": 0.1, "alpha": 0.9}
    _, [note] = dense("optimizer.dense._target_=torch.optim.SGD")
    assert "takes no betas and no eps, which were" in note
    node, [note] = dense("optimizer.dense._target_=torch.optim.Adafactor")
    assert node.keys() == {"_target_", "lr", "weight_decay"}
    assert "takes no betas and no such eps, which were torch.optim.Adam's: left out" in note


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["optimizer.dense.eps=[1e-8]"], "eps=[1e-08]: expected number, got list [1e-08]"),
        (["optimizer.dense._target_=torch.optim.Adafactor", "optimizer.dense.eps=1e-8"],
         "eps=1e-08: expected list of number or null, got number 1e-08"),
        (["optimizer.dense._target_=torch.optim.Adafactor", "optimizer.dense.eps=[0.1]"],
         "eps=[0.1]: needs 2 items"),
    ],
)  # fmt: skip
def test_adafactor_has_two_eps_and_the_others_one(words, problem):
    with pytest.raises(ConfigError, match=re.escape(f"optimizer.dense.{problem}")):
        dense(*words)
    node, _ = dense(
        "optimizer.dense._target_=torch.optim.Adafactor", "optimizer.dense.eps=[null,0.001]"
    )
    assert node["eps"] == [None, 0.001]


@pytest.mark.parametrize(
    "words",
    [
        (RMSPROP, "optimizer.dense.betas=[0.5,0.9]"),  # given: the class says that it is wrong
        ("optimizer.dense._target_=mine.Optimizer",),  # nobody knows what it takes
        ("optimizer.dense._target_=torch.optim.Adam",),
        ("optimizer.dense._target_=torch.optim.NAdam",),  # takes all of it
    ],
)
def test_everything_else_stays(words):
    composed = compose(list(words))
    assert composed.config["optimizer"]["dense"].keys() == {"_target_", *ADAM}
    assert composed.notes == ()


@pytest.mark.parametrize("plus", ["", "+"])
def test_a_dictionary_with_a_class_is_taken_as_it_is(plus):
    node, notes = dense(f"{plus}optimizer.dense={{_target_: torch.optim.Adam, amsgrad: true}}")
    assert node == {"_target_": "torch.optim.Adam", "amsgrad": True}
    assert notes == ()
    node, _ = dense("optimizer.dense={lr: 0.5}")
    assert node == {"_target_": "torch.optim.Adam", **ADAM, "lr": 0.5}


def test_a_net_or_loss_of_ones_own_replaces_the_option_and_ours_changes_it():
    own = "model.loss={_target_: mine.Loss, margin: 2}"
    composed = compose([own, "model.net={_target_: mine.Net}", "model.loss.margin=3"])
    assert composed.problems == ()
    assert composed.config["model"] == {
        "loss": {"_target_": "mine.Loss", "margin": 3},
        "net": {"_target_": "mine.Net"},
    }
    ours = compose(["model.loss={_target_: runner.models.losses.Focal, gamma: 1.0}"])
    assert "label_smoothing" in ours.config["model"]["loss"]


def test_a_key_whose_value_is_null_can_be_deleted():
    composed = compose(["~model.loss.pos_weight", "~model.loss.label_smoothing"])
    assert composed.problems == ()
    assert set(composed.config["model"]["loss"]) == {"_target_"}


@pytest.mark.long
@pytest.mark.parity("E2")
def test_a_run_with_another_class_trains_and_keeps_it(runner, tmp_path: Path):
    run = tmp_path / "run"
    done = runner.run(*TINY, RMSPROP, "trainer.max_steps=6", f"hydra.run.dir={run}").check()
    assert "left out" in done.text
    node = compose([], from_run=run).config["optimizer"]["dense"]
    assert node["_target_"] == "torch.optim.RMSprop" and "betas" not in node
    runner.run("resume", str(run), "trainer.max_steps=8").check()


def test_a_setting_that_was_given_is_refused_with_what_takes_it_out(runner, tmp_path: Path):
    words = (RMSPROP, "optimizer.dense.betas=[0.5,0.9]")
    done = runner.run(*TINY, *words, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "optimizer.dense.betas is not a setting of RMSprop" in done.text
    assert "~optimizer.dense.betas leaves it out" in done.text
