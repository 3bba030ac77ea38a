"""Evaluations on the way: of which splits, in what batches, watched by which rules."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from runner.config.compose import compose_job
from runner.config.targets import allowed_packages
from runner.embeddings import initialization
from runner.reporting.console import View
from runner.training.builder import build_job
from runner.training.loops.evaluate_split import evaluate_split
from runner.training.state import restore_weights
from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import fingerprint, newest_checkpoint, read_rows

TWO_EVALUATIONS = (*TINY, "trainer.eval_every=20")
ALL_SPLITS = "trainer.eval_splits=[train,validation,test]"


def train(runner: Zygote, run: Path, *more: str) -> str:
    done = runner.run(*TWO_EVALUATIONS, *more, f"hydra.run.dir={run}").check()
    return done.text


def rows(run: Path) -> dict[tuple[str, int], dict]:
    return {(row.pop("split"), row.pop("step")): row for row in read_rows(run)}


@pytest.fixture(scope="module")
def plain(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("plain") / "run"
    train(runner, run)
    return run


@pytest.mark.long
@pytest.mark.parity("T9", "L7")
def test_all_splits_are_evaluated_on_the_way_and_the_training_stays_the_same(
    runner, plain, tmp_path
):
    run = tmp_path / "run"
    assert "train_eval  step 20/40  loss" in train(runner, run, ALL_SPLITS)
    found, expected = rows(run), rows(plain)
    evaluated = [key for key in found if key[0] != "train"]
    assert evaluated[:6] == [
        (split, step) for step in (20, 40) for split in ("train_eval", "validation", "test")
    ]
    assert {k: found[k] for k in expected if k[0] != "test"} == {
        k: v for k, v in expected.items() if k[0] != "test"
    }
    tensors, tensors_plain = (
        {k: v for k, v in fingerprint(newest_checkpoint(r)).items() if "values" not in k}
        for r in (run, plain)
    )
    assert tensors == tensors_plain
    runner.run(
        "loop=eval",
        f"run={run}",
        "loop.split=[validation,test]",
        "checkpoint.step=last",
        f"hydra.run.dir={tmp_path / 'eval'}",
    ).check()
    metrics = json.loads((tmp_path / "eval" / "result.json").read_text())["metrics"]
    for split in ("validation", "test"):
        on_the_way = {k: v for k, v in found[split, 40].items() if k != "examples"}
        of_split = {k.partition("/")[2]: v for k, v in metrics.items() if k.startswith(split)}
        assert of_split == on_the_way
    assert len(rows(tmp_path / "eval")) == 2


@pytest.mark.parity("L21")
def test_the_size_of_evaluation_batches_changes_no_number(runner, plain, tmp_path):
    run = tmp_path / "run"
    train(runner, run, "trainer.eval_batch_size=171")
    found, expected = rows(run), rows(plain)
    assert found.keys() == expected.keys()
    for key, row in found.items():
        for name, value in row.items():
            assert math.isclose(value, expected[key][name], rel_tol=1e-6), (key, name)


def test_an_evaluation_draws_no_initial_weights_since_the_checkpoint_has_them(plain, monkeypatch):
    monkeypatch.setattr(
        initialization, "hashed_generator", lambda *_: pytest.fail("weights are drawn")
    )
    config = compose_job(["loop=eval", f"run={plain}"]).config
    job = build_job(config, None, view=View(), allowed=allowed_packages(()))
    assert job.source_checkpoint is not None
    restore_weights(job.context, job.source_checkpoint)
    found = evaluate_split(job, "test")
    expected = json.loads((plain / "result.json").read_text())["metrics"]
    assert found is not None and found["auc"] == expected["test/auc"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["loop.split=[]"], "loop.split=[]: needs a split: train, validation, test"),
        (
            ["loop.split=[test,tset]"],
            "loop.split[1]=tset: must be one of train, validation, test; nearest",
        ),
        (["loop.split=[test,test]"], "loop.split=test: is listed twice"),
        (["loop.split=[test,validation]", "loop.follow=true"], "loop.follow=true follows one"),
    ],
)
def test_a_mistake_in_the_list_of_splits_is_told(runner, plain, tmp_path, words, said):
    done = runner.run(
        "loop=eval", f"run={plain}", *words, f"hydra.run.dir={tmp_path / 'eval'}"
    ).check(2)
    assert said in done.text


@pytest.mark.long
@pytest.mark.parity("L10", "L21")
def test_rules_watch_the_train_and_the_test_split(runner, tmp_path):
    """No value beats the first by 100, so what the rules decide is known by hand."""
    run = tmp_path / "run"
    never = "min_delta: 100, metric"
    said = train(
        runner,
        run,
        ALL_SPLITS,
        "trainer.eval_every=5",
        f"trainer.lr_on_plateau={{patience: 2, {never}: train_eval/log_loss}}",
        f"trainer.early_stop={{patience: 4, {never}: test/auc}}",
    )
    assert "step 15: train_eval/log_loss has not improved by more than 100 in 2 eval" in said
    assert "step 25: stopping early: test/auc has not improved by more than 100 in 4" in said
    assert json.loads((run / "result.json").read_text())["step"] == 25
    rates = {step: row["lr/dense"] for (split, step), row in rows(run).items() if split == "train"}
    assert rates[21] == rates[7] / 2
