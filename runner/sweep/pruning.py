"""Answers jobs that ask after an evaluation whether they should go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import read_json, read_jsonl, write_json
from runner.rundir.readers import as_number
from runner.rundir.run_files import ANSWER_FILE, REQUEST_FILE
from runner.sweep.scheduler import RunningJob
from runner.sweep.search import SearchJobs


def pruning_responder(search_jobs: SearchJobs) -> Callable[[RunningJob], None] | None:
    """Return the function that answers a running job; None if this search stops no job early."""
    if search_jobs.spec.settings.pruner == "none":
        return None
    answered: dict[int, int] = {}  # try -> the step of its last answer

    def answer(running: RunningJob) -> None:
        step = _read_request(running.folder)
        if step is None or answered.get(running.try_id) == step:
            return
        evaluation, value = _read_evaluation(running.folder, step, search_jobs.plan.metric)
        stop = evaluation > 0 and search_jobs.trials.report(
            search_jobs.trial_numbers[running.job.key][0], evaluation, value
        )
        answered[running.try_id] = step
        write_json(running.folder / ANSWER_FILE, {"step": step, "stop": stop})

    return answer


def _read_request(folder: Path) -> int | None:
    path = folder / REQUEST_FILE
    if not path.exists():
        return None
    try:
        return int(read_json(path)["step"])
    except (UserError, TypeError, KeyError):  # the job has just removed it
        return None


def _read_evaluation(folder: Path, step: int, metric: str) -> tuple[int, float]:
    """Return the number of evaluations up to a step, and the metrics of the last one."""
    split, _, name = metric.partition("/")
    rows = [
        r
        for r in read_jsonl(folder / "metrics.jsonl")
        # callbacks may write rows of the same split
        if r.get("split") == split and name in r and (as_number(r.get("step")) or 0) <= step
    ]
    value = as_number(rows[-1][name]) if rows else None
    return len(rows), float("nan") if value is None else value
