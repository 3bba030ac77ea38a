"""Lets a job of a search ask its sweep after each evaluation whether to go on.

They exchange files in the run directory, so that it works wherever the job runs: the job writes
which step it has evaluated (the numbers are in `metrics.jsonl`), and the sweep writes its answer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import read_json, write_json
from runner.rundir.run_files import ANSWER_FILE, REQUEST_FILE
from runner.training.job import Job
from runner.training.stop_signal import StopSignal

_POLL_S = 0.01
_TIMEOUT_S = 60  # the sweep may be gone while the job goes on elsewhere


def should_prune(job: Job, step: int, stop: StopSignal) -> bool:
    """Return whether the sweep stops this run. Only rank 0 asks; `StopSignal` tells the others."""
    if "RUNNER_PRUNING" not in os.environ or job.run is None or not job.context.ranks.is_main:
        return False
    answer = ask_sweep(job.run.dir, step, stop)
    if answer is None and stop.local_signal is None:
        job.view.warn(
            f"the sweep did not say within {_TIMEOUT_S} s whether to prune this run; it goes on"
        )
    return bool(answer)


def ask_sweep(folder: Path, step: int, stop: StopSignal) -> bool | None:
    """Return whether the sweep stops the run; None if it does not answer or a signal comes."""
    write_json(folder / REQUEST_FILE, {"step": step})
    deadline = time.monotonic() + _TIMEOUT_S
    stops = None
    while stops is None and stop.local_signal is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        with suppress(UserError):  # there is no answer yet
            answer = read_json(folder / ANSWER_FILE)
            stops = bool(answer["stop"]) if answer["step"] == step else None
    for name in (REQUEST_FILE, ANSWER_FILE):
        (folder / name).unlink(missing_ok=True)
    return stops
