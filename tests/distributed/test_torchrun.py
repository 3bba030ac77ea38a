"""Under torchrun, rank 0 writes how the run ended, whichever other rank dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.distributed.launcher import ProcessResult
from runner.distributed.torchrun import ignore_sigterm, run_under_torchrun
from tests.conftest import ROOT
from tests.distributed.test_runs import SETTINGS, TRACED


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)  # gives the interpreter a chance to run the handler


def test_sigterm_before_training_ends_the_work_and_later_ones_are_ignored():
    seen = []

    def work() -> ProcessResult:
        seen.append("began")
        terminate()
        seen.append("went on")
        return ProcessResult(0)

    result = run_under_torchrun(work)
    assert (result.code, result.status) == (143, "interrupted")
    assert "torchrun" in result.message
    assert seen == ["began"]
    terminate()  # the process survives, as it has a result to write


def test_sigterm_after_the_last_update_does_not_take_the_result_back():
    def work() -> ProcessResult:
        ignore_sigterm()
        terminate()
        return ProcessResult(0)

    assert run_under_torchrun(work) == ProcessResult(0)


@pytest.mark.parametrize("at", ["except", "finally"])
def test_sigterm_does_not_hide_an_error_with_the_same_cause(at):
    def work() -> ProcessResult:
        try:
            try:
                raise RuntimeError("Connection reset by peer")
            finally:
                if at == "finally":
                    terminate()
        except RuntimeError as error:
            if at == "except":
                terminate()
            return ProcessResult(1, "failed", str(error))

    result = run_under_torchrun(work)
    assert (result.status, result.message) == ("failed", "Connection reset by peer")


@pytest.mark.slow
def test_a_rank_of_torchrun_that_is_killed_leaves_the_result_failed(tmp_path: Path):
    run = tmp_path / "run"
    words = (*TRACED, *SETTINGS, "trainer.batch_size=30", "trainer.accumulate=2", "optimizer=adam")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "runner", *words, f"hydra.run.dir={run}"],
        env={**os.environ, "TRACE_FILE": f"{run}.trace", "TRACE_KILL": "1:17"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["step"] in (15, 16) and "RuntimeError" in result["error"]
    assert "rank      : 0 (local_rank: 0)\n  exitcode  : 1 " in done.stderr, done.stderr
