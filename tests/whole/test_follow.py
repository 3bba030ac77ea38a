"""loop=eval loop.follow=true: a second process evaluates a training's checkpoints as they come."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from runner.training.loops.pinned_checkpoints import PinnedCheckpoints
from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import read_rows
from tests.whole.test_evaluate import contents

# slow enough to be killed in its middle, and to be seen at work
SETTINGS = (*TINY, "trainer.max_steps=400", "checkpoint.save_every=40", "trainer.eval_every=100")
FOLLOW = ("loop=eval", "loop.follow=true", "loop.poll_s=0.05")


def rows(run: Path, split: str = "test") -> list[dict]:
    path = run / "follow" / f"{split}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def metrics(row: dict) -> dict:
    return {k: v for k, v in row.items() if k not in ("signature", "evaluation")}


def wait_for(condition, text=lambda: "") -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(text())


def evaluated(runner: Zygote, folder: Path, run: Path, step: int, split: str = "test") -> dict:
    """By loop=eval, from the command line."""
    words = ("loop=eval", f"run={run}", f"checkpoint.step={step}", f"loop.split={split}")
    runner.run(*words, f"hydra.run.dir={folder}").check()
    [row] = read_rows(folder)
    return row


@pytest.fixture(scope="module")
def finished(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that has ended, with all its checkpoints."""
    run = tmp_path_factory.mktemp("finished") / "run"
    runner.run(*TINY, "checkpoint.keep=99", f"hydra.run.dir={run}").check()
    return run


@pytest.mark.long
@pytest.mark.parity("T9")
def test_it_follows_a_training_that_is_killed_twice_with_the_numbers_of_loop_eval(runner, tmp_path):
    run = tmp_path / "run"
    words = (*SETTINGS, "checkpoint.keep=99", f"hydra.run.dir={run}")
    training = runner.start(*words)
    wait_for(lambda: (run / "config.yaml").exists() and (run / "meta.json").exists())
    follower = runner.start(*FOLLOW, f"run={run}")
    for count in (2, 5):
        wait_for(lambda: len(rows(run)) >= count, lambda: follower.text + training.text)  # noqa: B023
        training.kill()
        training.wait()
        if count == 2:  # the follower as well, wherever it is
            follower.kill()
            follower.wait()
            follower = runner.start(*FOLLOW, f"run={run}")
        training = runner.start(*words)
    assert training.wait() == 0, training.text
    assert follower.wait() == 0, follower.text
    found = rows(run)
    steps = [row["step"] for row in found]
    assert sorted(steps) == sorted(set(steps)), "each checkpoint once"
    assert {40, 80, 120, 400} <= set(steps)
    for step in (40, 200, 400):
        [ours] = [metrics(row) for row in found if row["step"] == step]
        assert ours == evaluated(runner, tmp_path / f"eval-{step}", run, step)
    assert "the training's last step" in follower.text
    assert not list((run / "follow" / "test").glob("step-*"))  # nothing is held any more
    assert json.loads((run / "result.json").read_text())["status"] == "completed"


@pytest.mark.long
def test_it_changes_nothing_else_in_the_run_directory(runner, finished):
    before = contents(finished)
    runner.run(*FOLLOW, f"run={finished}", "loop.split=validation").check()
    after = contents(finished)
    assert {p: c for p, c in after.items() if f"{finished}/follow/" not in p} == before
    of_training = {r["step"]: r for r in read_rows(finished, "validation")}
    ours = {r["step"]: metrics(r) for r in rows(finished, "validation")}
    assert ours[40] == of_training[40]
    assert list(ours) == sorted(ours)
    assert len(ours) >= 8


@pytest.mark.long
def test_what_is_done_is_not_done_again_and_another_split_or_number_of_rows_is(runner, finished):
    words = (*FOLLOW, f"run={finished}", "loop.split=test")
    runner.run(*words).check()
    once = rows(finished)
    runner.run(*words).check()
    assert rows(finished) == once
    runner.run(*words, "loop.max_batches=2").check()
    both = rows(finished)
    assert [r["step"] for r in both] == 2 * [r["step"] for r in once]
    assert both[-1]["auc"] != once[-1]["auc"]


@pytest.mark.long
def test_latest_takes_only_the_newest(runner, tmp_path):
    run = tmp_path / "run"
    runner.run(*TINY, "checkpoint.keep=5", f"hydra.run.dir={run}").check()
    runner.run(*FOLLOW, f"run={run}", "loop.pick=latest").check()
    assert [row["step"] for row in rows(run)] == [40]


@pytest.mark.long
def test_it_waits_for_a_training_that_was_interrupted_and_gives_up_after_a_while(runner, tmp_path):
    run = tmp_path / "run"
    training = runner.start(*SETTINGS, "checkpoint.save_every=5", f"hydra.run.dir={run}")
    wait_for(lambda: list((run / "checkpoints").glob("step-*")), lambda: training.text)
    training.kill(signal.SIGINT)
    assert training.wait() == 130
    done = runner.run(*FOLLOW, f"run={run}", "loop.timeout_s=0.5").check()
    assert "the training interrupted; waiting for it to go on" in done.text
    assert "no new checkpoint for 0.5 s" in done.text
    last = json.loads((run / "result.json").read_text())["step"]
    assert rows(run)[-1]["step"] == last < 400


@pytest.mark.long
def test_ctrl_c_ends_it_and_a_second_follower_of_the_same_split_is_refused(runner, tmp_path):
    run = tmp_path / "run"
    training = runner.start(*SETTINGS, f"hydra.run.dir={run}")
    wait_for(lambda: list((run / "checkpoints").glob("step-*")), lambda: training.text)
    training.kill()
    training.wait()
    follower = runner.start(*FOLLOW, f"run={run}")
    wait_for(lambda: rows(run), lambda: follower.text)
    second = runner.run(*FOLLOW, f"run={run}").check(2)
    assert "another run is writing here" in second.text
    follower.kill(signal.SIGINT)
    assert follower.wait() == 130, follower.text
    assert "Traceback" not in follower.text


@pytest.mark.long
def test_a_damaged_checkpoint_is_passed_over(runner, tmp_path):
    run = tmp_path / "run"
    runner.run(*TINY, "checkpoint.keep=9", f"hydra.run.dir={run}").check()
    steps = sorted(int(p.name[5:]) for p in (run / "checkpoints").glob("step-*"))
    victim = next((run / "checkpoints" / f"step-{steps[0]}").glob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    done = runner.run(*FOLLOW, f"run={run}").check()
    assert f"the checkpoint of step {steps[0]} is passed over" in done.text
    assert [row["step"] for row in rows(run)] == steps[1:]


def test_a_checkpoint_that_vanishes_is_read_to_its_end_or_left_out(tmp_path):
    checkpoints, folder, told = tmp_path / "checkpoints", tmp_path / "pins", []
    folder.mkdir()
    whole = checkpoints / "step-3"
    whole.mkdir(parents=True)
    (whole / "manifest.json").write_text("{}")
    (whole / "shard.safetensors").write_bytes(b"weights")
    pins = PinnedCheckpoints(checkpoints, folder, told.append)
    pins.pin_new()
    for file in whole.iterdir():
        file.unlink()
    whole.rmdir()
    assert pins.steps() == [3]
    assert (folder / "step-3" / "shard.safetensors").read_bytes() == b"weights"
    pins.release(3)
    assert pins.steps() == []

    going = checkpoints / "step-4"  # between the look at its name and the link to its files
    going.mkdir()
    (going / "manifest.json").symlink_to(checkpoints / "gone")
    pins.pin_new()
    assert pins.steps() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run={tmp}/nowhere",), "nowhere: no such run directory"),
        (("run={tmp}",), "no run directory: it has no meta.json"),
        ((), "loop=eval: needs what to evaluate"),
        (("run={run}", "hydra.run.dir={tmp}/x"), "the results lie beside the training's"),
        (("run={run}", "loop.pick=newest"), "one of all, latest"),
        (("run={run}", "loop.timeout_s=0"), "loop.timeout_s=0: must be above 0"),
        (("run={run}", "loop.split=tset"), "one of train, validation, test; nearest: 'test'"),
        (("checkpoint.path={run}/checkpoints/step-40",), "loop.follow=true: follows a training"),
    ],
)
def test_a_target_that_cannot_be_followed_is_told(runner, finished, tmp_path, words, message):
    done = runner.run(*FOLLOW, *(w.format(tmp=tmp_path, run=finished) for w in words)).check(2)
    assert message in done.text
    assert "Traceback" not in done.text


@pytest.mark.long
def test_its_numbers_go_to_the_tracker_run_of_the_training(runner, tmp_path):
    run = tmp_path / "run"
    tracked = ("tracker=both", "tracker.wandb.mode=offline")
    runner.run(*TINY, *tracked, f"hydra.run.dir={run}").check()
    done = runner.run(*FOLLOW, f"run={run}").check()
    own, theirs = (
        json.loads((folder / "trackers.json").read_text())
        for folder in (run / "follow" / "test", run)
    )
    assert own["wandb"]["id"] == theirs["wandb"]["id"]
    assert list((run / "follow" / "test" / "wandb").glob(f"offline-run-*-{own['wandb']['id']}"))
    assert list((run / "follow" / "test" / "tensorboard").glob("events.*"))
    assert "tracker wandb" not in done.text
