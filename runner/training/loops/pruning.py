"""A job of a search asks its sweep after each evaluation whether to go on.

Both write a file into the run directory, so that it works wherever the job runs: the job which step
it has evaluated (the numbers stand in `metrics.jsonl`), the sweep its answer to that.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import read_json, write_json
from runner.training.job import Job
from runner.training.stop_signal import StopSignal

REQUEST_FILE, ANSWER_FILE = ".evaluated.json", ".answer.json"
_LOOK_S = 0.01
_PATIENCE_S = 60  # with a sweep that may be gone, while the job lives on elsewhere


def should_prune(job: Job, step: int, stop: StopSignal) -> bool:
    """Whether the sweep has seen enough of this run. Only rank 0 asks; others learn it from it."""
    if "RUNNER_PRUNING" not in os.environ or job.run is None or not job.context.ranks.is_main:
        return False
    answer = ask_sweep(job.run.dir, step, stop)
    if answer is None and stop.local_signal is None:
        job.view.warn(f"the sweep did not answer within {_PATIENCE_S} s; going on")
    return bool(answer)


def ask_sweep(folder: Path, step: int, stop: StopSignal) -> bool | None:
    """The sweep's answer; None if there is none, or a signal came while it was awaited."""
    write_json(folder / REQUEST_FILE, {"step": step})
    deadline = time.monotonic() + _PATIENCE_S
    stops = None
    while stops is None and stop.local_signal is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        with suppress(UserError):  # it is not there yet
            answer = read_json(folder / ANSWER_FILE)
            stops = bool(answer["stop"]) if answer["step"] == step else None
    for name in (REQUEST_FILE, ANSWER_FILE):
        (folder / name).unlink(missing_ok=True)
    return stops
