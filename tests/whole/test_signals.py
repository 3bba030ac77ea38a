"""Ctrl-C, SIGTERM, SIGHUP: finish the update, save, say so; the resumed run equals a quiet one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.distributed.ranks import SINGLE_PROCESS
from runner.rundir.checkpoint import open_checkpoint
from runner.training.job import Result
from runner.training.loops.session import run_and_report
from runner.training.stop_signal import GracePeriod, StopSignal
from tests.conftest import TINY, Process, Zygote
from tests.whole.compare_runs import differences, newest_checkpoint, read_rows

SETTINGS = (*TINY, "trainer.max_steps=600", "checkpoint.save_every=50", "trainer.eval_every=110")


def start(runner: Zygote, folder: Path) -> Process:
    return runner.start(*SETTINGS, f"hydra.run.dir={folder}")


@pytest.fixture(scope="module")
def quiet(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quiet") / "run"
    runner.run(*SETTINGS, f"hydra.run.dir={folder}").check()
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
@pytest.mark.parity("L13")
def test_a_signal_saves_the_update_it_interrupts_and_the_resumed_run_is_the_same(
    runner, quiet, tmp_path, number, code
):
    run = tmp_path / "run"
    process = start(runner, run)
    process.wait_until_training(run)
    process.kill(number)
    sent = time.monotonic()
    assert process.wait() == code, process.text
    assert time.monotonic() - sent < 10
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert 0 < result["step"] < 600
    assert open_checkpoint(newest_checkpoint(run)).step == result["step"]
    assert 0 < result["metrics"]["validation/auc"] < 1  # evaluated, into the result only
    assert all(row["step"] % 110 == 0 for row in read_rows(run, "validation"))
    assert "resume" in process.text
    runner.run(*SETTINGS, f"hydra.run.dir={run}").check()
    assert differences(run, quiet) == []


@pytest.mark.long
@pytest.mark.parity("L13")
def test_after_sigterm_an_evaluation_that_takes_too_long_is_left_out(runner, quiet, tmp_path):
    run = tmp_path / "run"
    process = runner.start(*SETTINGS, "trainer.stop_grace_s=0", f"hydra.run.dir={run}")
    process.wait_until_training(run)
    process.kill(signal.SIGTERM)
    assert process.wait() == 143, process.text
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "interrupted"
    is_evaluated = any(name.startswith("validation/") for name in result["metrics"])
    left_out = "has not ended within 0 s of the signal (trainer.stop_grace_s)" in process.text
    # a machine that is slow to look may send the signal when there is a best, which is told then
    assert is_evaluated == (result["best"] is not None) == (not left_out)
    assert open_checkpoint(newest_checkpoint(run)).step == result["step"]
    runner.run(*SETTINGS, f"hydra.run.dir={run}").check()
    assert differences(run, quiet) == []


@pytest.mark.parametrize(
    ("number", "seconds", "is_over"),
    [
        (signal.SIGTERM, 0.0, True),
        (signal.SIGTERM, 60.0, False),
        (signal.SIGTERM, None, False),
        (signal.SIGINT, 0.0, False),
    ],
)
def test_the_grace_period_counts_from_sigterm(number, seconds, is_over):
    stop = StopSignal(SINGLE_PROCESS)
    stop.request(number)
    assert GracePeriod(stop, seconds).sync_ranks() is is_over


@pytest.mark.long
@pytest.mark.parity("L13")
def test_a_second_ctrl_c_leaves_at_once_with_the_old_checkpoint_whole(runner, quiet, tmp_path):
    run = tmp_path / "run"
    process = start(runner, run)
    process.wait_until_training(run)
    process.kill(signal.SIGINT)
    process.kill(signal.SIGINT)
    sent = time.monotonic()
    assert process.wait() == 130
    assert time.monotonic() - sent < 2
    runner.run(*SETTINGS, f"hydra.run.dir={run}").check()
    assert differences(run, quiet) == []


def test_ctrl_c_before_the_first_update_says_interrupted(runner, tmp_path):
    process = start(runner, tmp_path / "run")
    time.sleep(0.05)
    process.kill(signal.SIGINT)
    assert process.wait() == 130, process.text
    assert "Traceback" not in process.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_trackers_end_leaves_a_completed_run_completed(number):
    ended, shown = [], []

    def finish(status: str) -> None:
        ended.append(status)
        os.kill(os.getpid(), number)

    job = SimpleNamespace(
        trackers=SimpleNamespace(finish=finish),
        view=SimpleNamespace(show_result=lambda *_, **words: shown.append(words["status"])),
        dataset=SimpleNamespace(reachable=None),
        run=None,
    )
    result = run_and_report(job, lambda _: Result("completed", 40, 640))
    assert (result.status, result.signal) == ("completed", None)
    assert ended == shown == ["completed"]
