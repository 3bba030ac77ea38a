"""Answers jobs that ask after an evaluation whether to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import read_json, read_jsonl, write_json
from runner.sweep.run_index import parse_metric_value
from runner.sweep.scheduler import RunningJob
from runner.sweep.search import SearchJobs

REQUEST_FILE, ANSWER_FILE = (
    ".evaluated.json",
    ".answer.json",
)  # as runner/training/loops/pruning.py has them


def pruning_responder(search_jobs: SearchJobs) -> Callable[[RunningJob], None] | None:
    """What the engine is to ask for each running job; None: this search stops no job early."""
    if search_jobs.spec.settings.pruner == "none":
        return None
    answered: dict[int, int] = {}  # try -> the step that its last answer was about

    def judge(one: RunningJob) -> None:
        step = _read_request(one.folder)
        if step is None or answered.get(one.try_id) == step:
            return
        evaluation, value = _read_evaluation(one.folder, step, search_jobs.plan.metric)
        stop = evaluation > 0 and search_jobs.trials.report(
            search_jobs.trial_numbers[one.job.key][0], evaluation, value
        )
        answered[one.try_id] = step
        write_json(one.folder / ANSWER_FILE, {"step": step, "stop": stop})

    return judge


def _read_request(folder: Path) -> int | None:
    path = folder / REQUEST_FILE
    if not path.exists():
        return None
    try:
        return int(read_json(path)["step"])
    except (UserError, TypeError, KeyError):  # it has just been taken away
        return None


def _read_evaluation(folder: Path, step: int, metric: str) -> tuple[int, float]:
    """How many evaluations there were up to a step, and what the last one measured."""
    split, _, name = metric.partition("/")
    rows = [
        r
        for r in read_jsonl(folder / "metrics.jsonl")
        if r.get("split") == split and r["step"] <= step
    ]
    value = parse_metric_value(rows[-1].get(name)) if rows else None
    return len(rows), float("nan") if value is None else value
