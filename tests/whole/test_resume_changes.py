"""What `resume DIR key=value` may change, and what it refuses: which setting, and why."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors
from tests.conftest import TINY, Finished, Zygote
from tests.whole.compare_runs import differences, newest_checkpoint, read_rows

pytestmark = pytest.mark.long
SHORT = (*TINY, "trainer.max_steps=10")
LONGER = ("trainer.max_steps=20",)


def train(runner: Zygote, folder: Path, *words: str) -> Path:
    runner.run(*SHORT, *words, f"hydra.run.dir={folder}").check()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != ".lock"}


def refused(runner: Zygote, run: Path, *words: str, longer: Sequence[str] = LONGER) -> str:
    """The message of a resume that must leave the directory as it is."""
    before = contents(run)
    done: Finished = runner.run("resume", str(run), *longer, *words)
    assert done.code == 2, done.text
    assert contents(run) == before
    return " ".join(done.text.split())


def weights(run: Path, *names: str) -> dict[str, torch.Tensor]:
    return read_tensors(open_checkpoint(newest_checkpoint(run)), names)


@pytest.fixture(scope="module")
def adam(runner, tmp_path_factory) -> Path:
    """With moving averages and optimizer states of everything."""
    folder = tmp_path_factory.mktemp("adam") / "run"
    return train(runner, folder, "optimizer=adam", "trainer.ema.decay=0.9")


def test_micro_batches_share_the_rows_that_an_update_has(runner, tmp_path):
    run, whole = (train(runner, tmp_path / name) for name in ("run", "whole"))
    done = runner.run("resume", str(run), *LONGER, "trainer.accumulate=2").check()
    assert "32 rows, shared by 1 rank x 2 micro-batches instead of 1 rank:" in done.text
    assert "trainer.batch_size: 32 -> 16" in done.text
    assert json.loads((run / "result.json").read_text())["examples"] == 20 * 32
    runner.run("resume", str(whole), *LONGER).check()
    ours, theirs = (weights(f, "dense/top.0.weight") for f in (run, whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.accumulate=3"], "trainer.accumulate=3: an update of this run has 32 rows"),
        (["trainer.batch_size=64"], "has 32 rows, over all ranks and micro-batches, and now it"),
        (["trainer.batch_size=32", "trainer.accumulate=2"], "would have 64; a resume keeps them"),
        (["trainer.ema.decay=null"], "trainer.ema.decay=null: this run keeps moving averages"),
        (
            ["optimizer.parts=[{pattern: 'bottom.*bias$', dense: {lr: 0.1}}, {pattern: '^bottom', "
             "frozen: true}]"],
            "optimizer.parts[1]: '^bottom' freezes 'bottom.0.weight'",
        ),
        (
            ["optimizer.parts=[{pattern: '^tables', frozen: true}]"],
            "optimizer.parts[0]: '^tables' freezes 'tables.C",
        ),
    ],
)  # fmt: skip
def test_what_the_checkpoint_does_not_fit_is_refused_by_the_setting(runner, adam, words, says):
    assert says in refused(runner, adam, *words)


def test_a_setting_that_no_update_is_left_for_is_refused(runner, adam, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(adam, run)
    step = json.loads((run / "result.json").read_text())["step"]
    length = f"trainer.max_steps={step}"
    told = refused(runner, run, "optimizer.dense.lr=0.5", "trainer.eval_every=5", length)
    assert f"optimizer.dense.lr=0.5: the run has made all its updates, at step {step}" in told
    told = refused(runner, run, "trainer.max_steps=9")
    assert f"trainer.max_steps=9: the run is at step {step} already" in told
    runner.run("resume", str(run), "metrics.ece_bins=7").check()


def test_epochs_that_are_done_cannot_be_given_other_settings(runner, tmp_path):
    words = ("dataset.rows={train: 64, validation: 500, test: 500}", "trainer.max_epochs=2")
    short = [word for word in TINY if not word.startswith(("dataset.rows", "trainer.max_steps"))]
    run = tmp_path / "run"
    runner.run(*short, *words, f"hydra.run.dir={run}").check()
    told = refused(runner, run, "trainer.max_epochs=1", longer=())
    assert "trainer.max_epochs=1: the run is at step 4, after 2 whole epochs already" in told
    told = refused(runner, run, "scheduler=cosine", longer=())
    assert "scheduler.kind=cosine" in told and "with a larger trainer.max_epochs it goes on" in told
    runner.run("resume", str(run), "trainer.max_epochs=3", "scheduler=cosine").check()


@pytest.mark.parametrize("words", [[], LONGER], ids=["as it was", "longer"])
def test_a_completed_run_without_its_checkpoints_is_left_as_it_is(runner, adam, tmp_path, words):
    run = tmp_path / "run"
    shutil.copytree(adam, run)
    shutil.rmtree(run / "checkpoints")
    told = refused(runner, run, *words, longer=())
    assert "has completed, but its checkpoint of step" in told and "there is no other" in told


def test_an_interrupted_run_without_its_checkpoints_is_left_as_it_is(runner, adam, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(adam, run)
    shutil.rmtree(run / "checkpoints")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    told = refused(runner, run, longer=())
    assert "was interrupted, but its checkpoint of step" in told and "there is no other" in told
    (run / "result.json").unlink()  # as after a kill, of which no file tells the last checkpoint
    done = runner.run("resume", str(run)).check()
    step = result["step"]
    assert f"though the run had come to step {step} at least: starting again" in done.text


def test_the_same_rows_may_be_cut_by_hand(runner, tmp_path):
    run = train(runner, tmp_path / "run")
    runner.run("resume", str(run), *LONGER, "trainer.batch_size=8", "trainer.accumulate=4").check()
    assert json.loads((run / "meta.json").read_text())["identity"]["global_batch"] == 32


def test_a_part_without_a_state_may_be_frozen_on_the_way(runner, tmp_path):
    run = train(runner, tmp_path / "run", "optimizer=sgd")
    before = weights(run, "dense/bottom.0.weight", "dense/top.0.weight")
    frozen = "optimizer.parts=[{pattern: '^bottom', frozen: true}]"
    runner.run("resume", str(run), *LONGER, frozen).check()
    after = weights(run, *before)
    assert torch.equal(after["dense/bottom.0.weight"], before["dense/bottom.0.weight"])
    assert not torch.equal(after["dense/top.0.weight"], before["dense/top.0.weight"])


def test_averages_may_be_left_out_of_evaluations(runner, adam):
    runner.run("resume", str(adam), "trainer.max_steps=12", "trainer.ema.evaluate=false").check()


def test_another_optimizer_is_named_and_taken_back_so_that_the_run_goes_on(runner, tmp_path):
    run, whole = (train(runner, tmp_path / name) for name in ("run", "whole"))
    config, result = ((run / name).read_bytes() for name in ("config.yaml", "result.json"))
    done = runner.run("resume", str(run), *LONGER, "optimizer=adam").check(2)
    assert "settings that this resume changed" in done.text
    assert "optimizer.sparse.kind: rowwise_adagrad -> adam" in done.text
    assert (run / "config.yaml").read_bytes() == config
    assert (run / "result.json").read_bytes() == result
    assert "0 of 1" in runner.run("clean", str(run)).check().text
    note = json.loads((run / "meta.json").read_text())["resumes"][-1]
    assert "optimizer.sparse.kind" in note["refused"]
    for folder in (run, whole):
        runner.run("resume", str(folder), *LONGER).check()
    assert differences(run, whole) == []


def edit_metrics(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"step": ', '"step":  ', 1))


def cut_checkpoints(run: Path) -> None:
    for shard in run.glob("checkpoints/*/*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:100])


@pytest.mark.parametrize("damage", [edit_metrics, cut_checkpoints])
@pytest.mark.parametrize("status", ["completed", "interrupted", None])
def test_a_refused_resume_of_a_damaged_run_leaves_its_result(
    runner, adam, tmp_path, damage, status
):
    run = tmp_path / "run"
    shutil.copytree(adam, run)
    known = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**known, "status": status}))
    if status is None:  # it was killed
        (run / "result.json").unlink()
    damage(run)
    config = (run / "config.yaml").read_bytes()
    runner.run("resume", str(run), *LONGER).check(2)
    assert (run / "result.json").exists() == (status is not None)
    if status is not None:
        assert json.loads((run / "result.json").read_text()) == {**known, "status": status}
    assert (run / "config.yaml").read_bytes() == config


OTHER_METRIC = ("checkpoint.monitor.metric=validation/log_loss", "checkpoint.monitor.direction=min")


def logged(run: Path, metric: str) -> dict[int, float]:
    """Step -> the metric, of all evaluations of validation."""
    return {row["step"]: row[metric] for row in read_rows(run, "validation")}


@pytest.mark.parametrize(
    ("metric", "choose", "words"),
    [
        ("pr_auc", max, ["checkpoint.monitor.metric=validation/pr_auc"]),
        ("log_loss", min, OTHER_METRIC),
    ],
)
def test_the_best_by_another_metric_is_chosen_anew_among_kept_checkpoints(
    runner, tmp_path, metric, choose, words
):
    run = train(runner, tmp_path / "run", "trainer.eval_every=1")
    kept = {int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")}
    done = runner.run("resume", str(run), "trainer.max_steps=13", *words).check()
    assert f"checkpoint.monitor is validation/{metric} {choose.__name__} now and was" in done.text
    values = logged(run, metric)
    of_kept = {values[step]: step for step in values if step in kept or step > 10}
    best = json.loads((run / "result.json").read_text())["best"]
    assert best == {"step": of_kept[choose(of_kept)], "value": choose(of_kept)}
    assert open_checkpoint(newest_checkpoint(run)).values["best"]["value"] == best["value"]


def test_averages_that_a_resume_begins_choose_the_best_among_those_that_have_them(runner, tmp_path):
    run = train(runner, tmp_path / "run", "trainer.eval_every=2", "optimizer.dense.lr=0.5")
    assert json.loads((run / "result.json").read_text())["best"]["step"] < 10
    done = runner.run("resume", str(run), *LONGER, "trainer.ema.decay=0.9").check()
    assert "holds no moving average: the best is taken anew" in done.text
    result = json.loads((run / "result.json").read_text())
    of_averages = {step: value for step, value in logged(run, "auc").items() if step > 10}
    best = max(of_averages, key=of_averages.__getitem__)
    assert result["best"] == {"step": best, "value": of_averages[best]}
    assert result["evaluated_step"] == best
    again = runner.run("resume", str(run), "trainer.max_steps=22")
    assert again.code == 0 and "holds no moving average" not in again.text


def test_a_kill_after_the_metric_was_changed_does_not_mix_the_two(runner, adam, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(adam, run)
    words = ("trainer.max_steps=30", "trainer.eval_every=30", *OTHER_METRIC)
    killed = runner.start("resume", str(run), *words)
    while "direction: min" not in (run / "config.yaml").read_text():
        time.sleep(0.001)  # before anything is saved again
    killed.kill()
    assert killed.wait() == -9
    runner.run("resume", str(run)).check()
    best = json.loads((run / "result.json").read_text())["best"]
    assert best["value"] == logged(run, "log_loss")[best["step"]]


def test_patience_begins_anew_with_another_metric(runner, tmp_path):
    waiting = ("trainer.early_stop.patience=9", "trainer.eval_every=2")
    run = train(runner, tmp_path / "run", *waiting)
    done = runner.run(
        "resume", str(run), *LONGER, "trainer.early_stop.metric=validation/pr_auc"
    ).check()
    assert "trainer.early_stop waits for validation/pr_auc max now and waited for" in done.text
    waited = open_checkpoint(newest_checkpoint(run)).values["waits"]["early_stop"]
    after = [value for step, value in logged(run, "pr_auc").items() if step > 10]
    assert waited["best"] == max(after)
    assert waited["since"] == len(after) - 1 - after.index(max(after))
