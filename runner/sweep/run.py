"""`python -m runner -m ...`: all jobs checked, what is done found, the rest run, the table shown."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from runner.errors import UserError
from runner.lock import Lock, holder
from runner.provenance import git_state
from runner.sweep import leaderboard
from runner.sweep.engine import Engine
from runner.sweep.known import WAITING, Found, Outcome, claim, folders, outcome_of, read_result, scan
from runner.sweep.leaderboard import Row
from runner.sweep.plan import Checked, Job, SweepPlan, plan_sweep
from runner.sweep.process import LOG, Start, local, wait_for_orphans
from runner.sweep.show import Board, Checking
from runner.sweep.stopping import stopping_on_signals
from runner.sweep.study import End, OpenTry, Study

_PROJECT = Path(__file__).resolve().parents[2]
_ORPHAN_GRACE_S = 30  # for jobs of a sweep that was killed to save
_LEADERBOARD_EVERY_S = 5  # so that a sweep that is killed leaves a recent one


def sweep(
    jobs: Sequence[Sequence[str]],
    *,
    check: Callable[[Sequence[str]], Checked],
    flags: Sequence[str] = (),
    command: Sequence[str] = (),
    dry_run: bool = False,
    start: Callable[[SweepPlan, Sequence[str], str], Start] = local,
) -> int:
    """Runs a job for each list of overrides, in processes of their own, and shows what came of it.

    Args: check: composes and checks one job without importing torch, and raises UserError;
    flags: words of the command line that are no overrides and that every job gets too;
    command: the whole command, for the record; start: how jobs are begun.
    Returns: the exit code: 0, 1 if a job failed, 130 or 143 after a signal.
    Raises: UserError before anything has started or been written.
    """
    console = Console(highlight=False)
    plan = plan_sweep(jobs, check, progress=Checking(console))
    for note in plan.notes:
        _warn(note)
    directory = Path(plan.directory)
    if (directory / "meta.json").exists():
        raise UserError(f"{directory}: a run directory, not a sweep's; choose another hydra.sweep.dir")
    if dry_run:
        return _dry_run(console, plan, directory)
    with _locked(directory):
        study = Study(directory, _warn)
        try:
            return _sweep(console, plan, study, directory, command, start(plan, flags, directory.name))
        finally:
            study.close()


def _sweep(
    console: Console,
    plan: SweepPlan,
    study: Study,
    directory: Path,
    command: Sequence[str],
    start: Start,
) -> int:
    open_tries = study.open_tries()
    _end_orphans(open_tries, directory)
    found = scan(directory, _warn)
    claimed = claim(plan.jobs, found)
    known = study.known()
    names = folders(plan.jobs, claimed, known, found, directory)
    facts = {"command": list(command), "cwd": os.getcwd(), "metric": plan.metric}
    study.enter(((j, names[j.key]) for j in plan.jobs), facts | {"direction": plan.direction})
    _close_tries(study, open_tries, directory)
    outcomes: dict[str, Outcome] = {}
    for job in plan.jobs:
        seconds = known[job.key].seconds if job.key in known else None
        result = claimed[job.key].result if job.key in claimed else None
        outcomes[job.key] = (
            outcome_of(result, plan.metric, seconds=seconds) if job.key in claimed else WAITING
        )
    done = [j for j in plan.jobs if outcomes[j.key].status == "completed"]
    study.settle((j.key, "completed", None) for j in done)
    todo = [j for j in plan.jobs if outcomes[j.key].status != "completed"]
    _announce(console, plan, directory, claimed, len(done))

    def save_leaderboard() -> list[Row]:
        rows = leaderboard.ranked(
            (Row(j, names[j.key], outcomes[j.key]) for j in plan.jobs), plan.direction
        )
        leaderboard.write_csv(directory / leaderboard.FILE, rows, plan)
        return rows

    with stopping_on_signals() as stopping:
        with Board(console, plan, num_done=len(done)) as board:
            board.known([(j, outcomes[j.key]) for j in done])
            place = lambda job: directory / names[job.key]
            engine = Engine(start, plan.launcher, study, stopping, board, place)
            saved = time.monotonic()
            for job, end in engine.run(todo):
                seconds = engine.spent[job.key] + (known[job.key].seconds if job.key in known else 0)
                outcomes[job.key] = _outcome(place(job), plan.metric, end, seconds)
                board.ended(job, end, outcomes[job.key])
                if time.monotonic() - saved > _LEADERBOARD_EVERY_S:
                    _trying(save_leaderboard)
                    saved = time.monotonic()
        trouble = engine.trouble
        try:
            rows = save_leaderboard()
        except OSError as error:
            trouble = trouble or f"{directory / leaderboard.FILE} could not be written: {error}"
            rows = [Row(j, names[j.key], outcomes[j.key]) for j in plan.jobs]
        _conclude(console, plan, directory, rows)
        if trouble is not None:
            _warn(f"the sweep stopped: {trouble}")
            return 1
        if stopping.requested:
            _warn("stopped; the same command goes on where it stopped")
            return stopping.exit_code
    return 0 if all(o.status == "completed" for o in outcomes.values()) else 1
