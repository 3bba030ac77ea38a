"""Eval-only: from a run directory alone, the same numbers, the source untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import read_result, read_rows


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def trained(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    # improves early, then overfits: the best checkpoint is not the last
    more = ("trainer.max_steps=400", "optimizer.sparse.lr=0.3", "checkpoint.save_every=100")
    runner.run(*TINY, *more, f"hydra.run.dir={folder}").check()
    assert 0 < read_result(folder)["best"]["step"] < 400
    return folder


def evaluate(runner, tmp_path, *args):
    own = tmp_path / "eval"
    done = runner.run("loop=eval", f"hydra.run.dir={own}", *args).check()
    return read_result(own)["metrics"], done.text


@pytest.mark.long
@pytest.mark.parity("E9", "N5")
def test_it_repeats_the_numbers_of_training_to_the_last_digit(runner, trained, tmp_path):
    before = contents(trained)
    metrics, _ = evaluate(runner, tmp_path, f"run={trained}")
    expected = {k: v for k, v in read_result(trained)["metrics"].items() if k.startswith("test/")}
    assert metrics == expected
    assert contents(trained) == before


@pytest.mark.long
@pytest.mark.parity("L8")
def test_the_best_checkpoint_is_the_one_that_the_log_says(runner, trained, tmp_path):
    metrics, _ = evaluate(runner, tmp_path, f"run={trained}", "loop.split=validation")
    assert metrics["validation/auc"] == read_result(trained)["best"]["value"]
    logged = {r["step"]: r["auc"] for r in read_rows(trained, "validation")}
    assert metrics["validation/auc"] == logged[read_result(trained)["best"]["step"]]
    assert metrics["validation/auc"] == max(logged.values())


@pytest.mark.long
def test_the_last_checkpoint_can_be_asked_for_by_name_and_number(runner, trained, tmp_path):
    last, _ = evaluate(
        runner, tmp_path / "a", f"run={trained}", "checkpoint.step=last", "loop.split=validation"
    )
    number, _ = evaluate(
        runner, tmp_path / "b", f"run={trained}", "checkpoint.step=400", "loop.split=validation"
    )
    logged = {r["step"]: r["auc"] for r in read_rows(trained, "validation")}
    assert last == number
    assert last["validation/auc"] == logged[400]


@pytest.mark.long
def test_an_evaluation_that_was_killed_and_goes_on_has_each_row_once(runner, tmp_path):
    runner.run(*TINY, "trainer.max_steps=5", f"hydra.run.dir={tmp_path / 'run'}").check()
    words, own = (f"run={tmp_path / 'run'}", "loop.split=[validation,test]"), tmp_path / "eval"
    evaluate(runner, tmp_path, *words)
    rows = read_rows(own)
    (own / "result.json").unlink()  # as after a kill just before its end
    evaluate(runner, tmp_path, *words)
    assert read_rows(own) == rows
    assert [row["split"] for row in rows] == ["validation", "test"]


def test_a_checkpoint_folder_is_enough(runner, trained, tmp_path):
    best = trained / "checkpoints" / f"step-{read_result(trained)['best']['step']}"
    metrics, _ = evaluate(runner, tmp_path, f"checkpoint.path={best}")
    assert metrics["test/auc"] == read_result(trained)["metrics"]["test/auc"]


@pytest.mark.parity("T10")
def test_the_first_k_batches_are_fewer_rows(runner, trained, tmp_path):
    metrics, _ = evaluate(runner, tmp_path, f"run={trained}", "loop.max_batches=3")
    assert metrics["test/auc"] != read_result(trained)["metrics"]["test/auc"]


@pytest.mark.parity("N5")
def test_an_override_replaces_that_part_and_is_listed(runner, trained, tmp_path):
    metrics, text = evaluate(runner, tmp_path, f"run={trained}", "trainer.batch_size=100")
    assert "trainer.batch_size" in text
    assert "32" in text
    assert metrics["test/auc"] == pytest.approx(
        read_result(trained)["metrics"]["test/auc"], abs=1e-6
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["checkpoint.step=bst"],
            "checkpoint.step=bst: must be one of best, last; nearest: 'best'",
        ),
        (["checkpoint.step=399"], "checkpoint.step=399: there is no {run}/checkpoints/step-399; "),
        (["model.net.top=[16]"], "'dense/top.0.weight' is (8, "),
        (["model=dcn"], "loop=eval evaluates the model that was trained"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_directory_is_made(
    runner, trained, tmp_path, words, says
):
    done = runner.run(
        "loop=eval", f"run={trained}", *words, f"hydra.run.dir={tmp_path / 'e'}"
    ).check(2)
    assert says.format(run=trained) in done.text
    assert "Traceback" not in done.text
    assert not (tmp_path / "e").exists()


def test_a_run_directory_in_place_of_a_checkpoint_folder_is_told_how_it_is_evaluated(
    runner, trained, tmp_path
):
    done = runner.run("loop=eval", f"checkpoint.path={trained}", cwd=tmp_path).check(2)
    assert f"checkpoint.path={trained}: is a run directory" in done.text
    assert f"run={trained} evaluates it" in done.text


def test_a_setting_of_the_model_that_keeps_its_weights_may_change(runner, trained, tmp_path):
    metrics, _ = evaluate(runner, tmp_path, f"run={trained}", "model.loss.label_smoothing=0.1")
    before = read_result(trained)["metrics"]
    assert metrics["test/auc"] == before["test/auc"]  # the same weights, by another loss
    assert metrics["test/loss"] != before["test/loss"]
