"""`python -m runner -m ...`: all jobs checked, the ones that are not done run, the table shown."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from runner.errors import UserError
from runner.lock import Lock, holder
from runner.sweep import leaderboard
from runner.sweep.engine import Engine
from runner.sweep.known import claim, scan
from runner.sweep.plan import Checked, SweepPlan, plan_sweep
from runner.sweep.process import LOG, Start, local
from runner.sweep.show import Board, Checking
from runner.sweep.standing import Standing, save, take_in, take_stock
from runner.sweep.stopping import stopping_on_signals
from runner.sweep.study import Study

_LEADERBOARD_EVERY_S = 5  # so that a sweep that is killed leaves a recent one
_FILE_WIDTH = 140  # columns of text
_NAMED = 20  # failed jobs that are named at the end


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
    Raises: UserError before anything has started.
    """
    console = _console()
    plan = plan_sweep(jobs, check, progress=Checking(console))
    for note in plan.notes:
        _warn(note)
    directory = Path(plan.directory)
    if (directory / "meta.json").exists():
        raise UserError(
            f"{directory}: a run directory, not a sweep's; choose another hydra.sweep.dir"
        )
    if dry_run:
        return _dry_run(console, plan, directory)
    with _locked(directory):
        study = Study(directory, _warn)
        try:
            study.note({"command": list(command), "cwd": os.getcwd(), "metric": plan.metric})
            return _sweep(console, plan, study, directory, start(plan, flags, directory.name))
        finally:
            study.close()


def _sweep(console: Console, plan: SweepPlan, study: Study, directory: Path, start: Start) -> int:
    standing = take_stock(plan, study, directory, _warn)
    todo = [j for j in plan.jobs if standing.outcomes[j.key].status != "completed"]
    _announce(console, standing)
    with stopping_on_signals() as stopping:
        with Board(console, plan, num_done=len(plan.jobs) - len(todo)) as board:
            board.known([(j, o) for j in plan.jobs if (o := standing.outcomes[j.key]).is_completed])
            engine = Engine(start, plan.launcher, study, stopping, board, standing.place)
            saved = time.monotonic()
            for job, end in engine.run(todo):
                take_in(standing, job, end, engine.spent[job.key])
                board.ended(job, end, standing.outcomes[job.key])
                if time.monotonic() - saved > _LEADERBOARD_EVERY_S:
                    save(standing)
                    saved = time.monotonic()
        unsaved = save(standing)
        _conclude(console, standing)
        _write_page(console, directory)
    if unsaved is not None:
        _warn(unsaved)
    if engine.trouble is not None:
        _warn(f"the sweep stopped: {engine.trouble}")
    if unsaved or engine.trouble:
        return 1
    if stopping.requested:
        _warn("stopped; the same command goes on from here")
        return stopping.exit_code
    return 0 if all(o.is_completed for o in standing.outcomes.values()) else 1


def _announce(console: Console, standing: Standing) -> None:
    plan = standing.plan
    done = sum(o.is_completed for o in standing.outcomes.values())
    slots = plan.launcher.slots
    parts = [_count(len(plan.jobs), "job"), f"{done} done already" if done else ""]
    parts += ["one at a time" if slots == 1 else f"{slots} at a time"]
    _say(console, f"sweep {standing.directory}: {', '.join(p for p in parts if p)}")
    if standing.num_others:
        _say(
            console,
            f"beside these jobs there: {_count(standing.num_others, 'run')} with other values or "
            "other defaults, left alone and not in this leaderboard",
        )
    if standing.other_code:
        _warn(
            f"made by other code than today's (see git in meta.json): "
            f"{_count(standing.other_code, 'finished job')}; without its folder a job runs again"
        )


def _conclude(console: Console, standing: Standing) -> None:
    rows = standing.rows()
    leaderboard.show(console, rows, standing.plan)
    counts = Counter(r.outcome.status for r in rows)
    _say(console, f"{leaderboard.summary(counts)}: {standing.directory / leaderboard.FILE}")
    bad = [r for r in rows if r.outcome.error]
    for row in bad[:_NAMED]:
        where = standing.directory / row.folder / LOG
        _warn(f"{row.outcome.status}: {row.job.label}: {row.outcome.error}  ({where})")
    if len(bad) > _NAMED:
        _warn(f"and {len(bad) - _NAMED} more; {leaderboard.FILE} has them all")


def _write_page(console: Console, directory: Path) -> None:
    """`report.html` of the sweep, also after failures and Ctrl-C."""
    from runner.report.write import write_own_page

    try:
        _say(console, f"report: {write_own_page(directory)}")
    except Exception as error:  # the runs are done and on disk, whatever is wrong with a page
        _warn(f"report.html could not be written: {error}; `report {directory}` tries again")


def _dry_run(console: Console, plan: SweepPlan, directory: Path) -> int:
    """Lists the jobs and what is done; writes nothing."""
    claimed = claim(plan.jobs, scan(directory, _warn))
    states = Counter[str]()
    for job in plan.jobs:
        one = claimed.get(job.key)
        if one is None:
            state = "new"
        elif one.is_completed:
            state = "done"
        else:
            state = str((one.result or {}).get("status", "interrupted"))
        states[state] += 1
        _say(console, f"{state:<12}{job.label}" + (f"  ({one.folder})" if one else ""))
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    _say(console, f"{_count(len(plan.jobs), 'job')}: {counts}; in {directory}")
    return 0


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One sweep a directory. Raises: UserError naming the other one, or why it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = Lock(directory)
    except UserError:
        raise UserError(
            f"{directory}: another sweep is running here: {holder(directory)}; wait for it, or "
            "choose another place with hydra.sweep.dir=DIR"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"{directory}: cannot write the sweep's directory: {reason}; hydra.sweep.dir=DIR puts "
            "it elsewhere"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _console() -> Console:
    """Of the terminal's width; wide where nobody's terminal limits it, as in a log file."""
    free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_FILE_WIDTH if free else None)


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
