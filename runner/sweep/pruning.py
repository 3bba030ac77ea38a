"""Answers jobs that ask after an evaluation whether to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import read_json, read_rows, write_json
from runner.sweep.run_index import number
from runner.sweep.scheduler import Running
from runner.sweep.search import Choosing

ASKED, ANSWER = ".evaluated.json", ".answer.json"  # as runner/training/loops/pruning.py has them


def judge_of(choosing: Choosing) -> Callable[[Running], None] | None:
    """What the engine is to ask for each running job; None: this search stops no job early."""
    if choosing.search.settings.pruner == "none":
        return None
    answered: dict[int, int] = {}  # try -> the step that its last answer was about

    def judge(one: Running) -> None:
        step = _asked(one.folder)
        if step is None or answered.get(one.number) == step:
            return
        evaluation, value = _measured(one.folder, step, choosing.plan.metric)
        stop = evaluation > 0 and choosing.trials.report(
            choosing.numbers[one.job.key][0], evaluation, value
        )
        answered[one.number] = step
        write_json(one.folder / ANSWER, {"step": step, "stop": stop})

    return judge


def _asked(folder: Path) -> int | None:
    path = folder / ASKED
    if not path.exists():
        return None
    try:
        return int(read_json(path)["step"])
    except (UserError, TypeError, KeyError):  # it has just been taken away
        return None


def _measured(folder: Path, step: int, metric: str) -> tuple[int, float]:
    """How many evaluations there were up to a step, and what the last one measured."""
    split, _, name = metric.partition("/")
    rows = [
        r
        for r in read_rows(folder / "metrics.jsonl")
        if r.get("split") == split and r["step"] <= step
    ]
    value = number(rows[-1].get(name)) if rows else None
    return len(rows), float("nan") if value is None else value
