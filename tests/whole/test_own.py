"""What a user brings or chooses: an optimizer of his own, the splits evaluated at the end."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import TINY
from tests.whole.compare_runs import fingerprint, newest_checkpoint, read_result, read_rows


class Halved(torch.optim.SGD):
    """SGD at half the rate: what it does is known from SGD."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] /= 2
        loss = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 2
        return loss


@pytest.mark.long
@pytest.mark.parity("C5")
def test_an_optimizer_of_ones_own_by_target_trains_as_it_says(runner, tmp_path):
    words = ("--allow", "tests", *TINY, "optimizer=sgd", "trainer.max_steps=12")
    target = "optimizer.dense._target_=tests.whole.test_own.Halved"
    runs = {"own": (target, "optimizer.dense.lr=0.5"), "torchs": ("optimizer.dense.lr=0.25",)}
    for name, more in runs.items():
        runner.run(*words, *more, f"hydra.run.dir={tmp_path / name}").check()
    own, torchs = (fingerprint(newest_checkpoint(tmp_path / name)) for name in runs)
    names = [n for n in own if n.startswith(("dense/", "tables/"))]
    assert len(names) > 20
    assert {n: own[n] for n in names} == {n: torchs[n] for n in names}
    refused = runner.run(*words[2:], target, f"hydra.run.dir={tmp_path / 'no'}").check(2)
    assert "not in an allowed package" in refused.text


@pytest.mark.long
def test_the_splits_evaluated_at_the_end_are_a_choice_and_have_the_numbers_of_loop_eval(
    runner, tmp_path
):
    run, own = tmp_path / "run", tmp_path / "eval"
    words = (*TINY, "trainer.max_steps=12", "loop.final_splits=[train,test]")
    runner.run(*words, "loop=train", f"hydra.run.dir={run}").check()
    rows = read_rows(run)
    assert {row["split"] for row in rows} == {"train", "train_eval", "validation", "test"}
    keys = [(row["split"], row["step"]) for row in rows]
    assert len(keys) == len(set(keys))  # no row of one name and step has two meanings
    runner.run("loop=eval", f"run={run}", "loop.split=train", f"hydra.run.dir={own}").check()
    there = read_result(own)["metrics"]
    assert there["train_eval/auc"] == read_result(run)["metrics"]["train_eval/auc"]
    assert there["train_eval/loss"] == read_result(run)["metrics"]["train_eval/loss"]
    assert "test/auc" in read_result(run)["metrics"]
    only = tmp_path / "only"
    runner.run(*words, "loop.final_splits=[]", f"hydra.run.dir={only}").check()
    assert not any(name.startswith("test/") for name in read_result(only)["metrics"])
