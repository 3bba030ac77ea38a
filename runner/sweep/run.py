"""`python -m runner -m ...`: all jobs checked, the ones that are not done run, the table shown."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from runner.config.settings import SearchSettings
from runner.errors import UserError
from runner.rundir.lock import Lock, holder
from runner.sweep import leaderboard
from runner.sweep.database import Study, StudyError, known_trials
from runner.sweep.grid import Grid
from runner.sweep.live_view import Board, Checking
from runner.sweep.local_process import LOG, Start, local
from runner.sweep.plan import Checked, Job, SweepPlan, plan_sweep
from runner.sweep.pruning import judge_of
from runner.sweep.run_index import Outcome, claim, scan
from runner.sweep.scheduler import Engine
from runner.sweep.search import Choosing, plan_search
from runner.sweep.space import Space
from runner.sweep.stop_signal import stopping_on_signals
from runner.sweep.sweep_state import Standing, save, take_in, take_stock, without_other_code

_LEADERBOARD_EVERY_S = 5  # so that a sweep that is killed leaves a recent one
_FILE_WIDTH = 140  # columns of text
_NAMED = 20  # failed jobs that are named at the end


@dataclass(frozen=True)
class Options:
    """What the command line says of a sweep besides its jobs.

    flags: words that are no overrides and that every job gets too; command: the whole command, for
    the record; words: of it, what `resume` gives again; rerun: what other code has done is done
    again; elsewhere: a launcher plugin and its settings; start: how jobs are begun.
    """

    flags: Sequence[str] = ()
    command: Sequence[str] = ()
    words: Sequence[str] = ()
    dry_run: bool = False
    rerun: bool = False
    elsewhere: tuple[str, tuple[str, ...]] | None = None
    start: Callable[[SweepPlan, Sequence[str], str], Start] = local


def sweep(
    jobs: Sequence[Sequence[str]],
    *,
    check: Callable[[Sequence[str]], Checked],
    options: Options = Options(),
) -> int:
    """Runs a job for each list of overrides, in processes of their own, and shows what came of it.

    Args: check: composes and checks one job without importing torch, and raises UserError.
    Returns: the exit code: 0, 1 if a job failed, 130 or 143 after a signal.
    Raises: UserError before anything has started.
    """
    console = _console()
    plan = plan_sweep(jobs, check, progress=Checking(console))
    return run_plan(console, plan, Grid, options)


def search(
    fixed: Sequence[str],
    space: Space,
    settings: SearchSettings,
    *,
    check: Callable[[Sequence[str]], Checked],
    options: Options,
) -> int:
    """The same for jobs that are chosen one by one. Args: fixed: overrides of every job."""
    console = _console()
    plan, wanted = plan_search(fixed, space, settings, check)
    return run_plan(console, plan, lambda p, study: Choosing(wanted, p, Path(p.directory)), options)


def run_plan(
    console: Console,
    plan: SweepPlan,
    make: Callable[[SweepPlan, Study], Grid | Choosing],
    options: Options,
) -> int:
    """Args: make: the source of jobs, once the directory is this sweep's."""
    if options.rerun and plan.total is not None:
        raise UserError(
            "--rerun changed: a search has chosen its jobs by what the others came to; another "
            "hydra.sweep.dir begins a new one"
        )
    plan = replace(plan, elsewhere=options.elsewhere)
    for note in plan.notes:
        _warn(note)
    directory = Path(plan.directory)
    if (directory / "meta.json").exists():
        raise UserError(
            f"{directory}: a run directory, not a sweep's; choose another hydra.sweep.dir"
        )
    if options.dry_run:
        return _dry_run(console, plan, directory, rerun=options.rerun)
    with _locked(directory):
        study = Study(directory, _warn)
        try:
            source = make(plan, study)
            try:
                facts = {"command": list(options.command), "words": list(options.words)}
                study.note({**facts, "cwd": os.getcwd(), "metric": plan.metric})
                start = options.start(source.plan, options.flags, directory.name)
                standing = take_stock(source.plan, study, directory, _warn, rerun=options.rerun)
                return _sweep(console, source, standing, start)
            finally:
                source.close()
        finally:
            study.close()


def _sweep(console: Console, source: Grid | Choosing, standing: Standing, start: Start) -> int:
    plan, study = source.plan, standing.study
    done = [(j, o) for j in plan.jobs if (o := standing.outcomes[j.key]).is_done]
    _announce(console, standing)
    with stopping_on_signals() as stopping:
        with Board(console, plan, done) as board:
            engine = Engine(start, plan.launcher, study, stopping, board, standing.place)
            engine.judge = judge_of(source) if isinstance(source, Choosing) else None
            saved = time.monotonic()
            for job, end in engine.run(source.jobs(standing)):
                take_in(standing, job, end, engine.spent[job.key])
                outcome = standing.outcomes[job.key]
                board.ended(job, end, outcome)
                _tell(engine, source, job, outcome)
                if time.monotonic() - saved > _LEADERBOARD_EVERY_S:
                    save(standing, source.front())
                    saved = time.monotonic()
        front = source.front()
        unsaved = save(standing, front)
        _conclude(console, standing, front)
        if not stopping.at_once:  # a second Ctrl-C waits for no drawing; `report DIR` makes it
            _write_page(console, standing.directory)
    if unsaved is not None:
        _warn(unsaved)
    if engine.trouble is not None:
        _warn(f"the sweep stopped: {engine.trouble}")
    if unsaved or engine.trouble:
        return 1
    if stopping.requested:
        _warn("stopped; the same command goes on from here")
        return stopping.exit_code
    return 0 if all(o.is_done for o in standing.outcomes.values()) else 1


def _tell(engine: Engine, source: Grid | Choosing, job: Job, outcome: Outcome) -> None:
    """What a job came to, to where jobs come from; if that makes no sense of it the sweep stops."""
    try:
        trouble = source.ended(job, outcome)
    except StudyError as error:
        trouble = str(error)
    if trouble is not None:
        engine.give_up(trouble)


def _announce(console: Console, standing: Standing) -> None:
    plan = standing.plan
    done = sum(o.is_done for o in standing.outcomes.values())
    slots = plan.launcher.slots
    parts = [_count(plan.num_jobs, "job"), f"{done} done already" if done else ""]
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
            f"{_count(standing.other_code, 'finished job')}; --rerun changed runs them again"
        )


def _conclude(console: Console, standing: Standing, front: Collection[str]) -> None:
    rows = standing.rows(front)
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
    """`report.html` of the sweep, also after failures and the first Ctrl-C."""
    from runner.reporting.report.write import write_own_page

    try:
        _say(console, f"report: {write_own_page(directory)}")
    except Exception as error:  # the runs are done and on disk, whatever is wrong with a page
        _warn(f"report.html could not be written: {error}; `report {directory}` tries again")


def _dry_run_search(console: Console, total: int, directory: Path) -> int:
    """Which trials there are and how many are to be chosen; writes nothing."""
    states = Counter[str]()
    for state, label in known_trials(directory):
        states[state] += 1
        _say(console, f"{state:<12}{label}")
    coming = max(0, total - sum(states.values()))
    counts = [f"{count} {state}" for state, count in states.items()]
    counts += [f"{coming} to be chosen"] if coming else []
    whole = _count(max(total, sum(states.values())), "job")
    _say(console, f"{whole}: {', '.join(counts)}; in {directory}")
    return 0


def _dry_run(console: Console, plan: SweepPlan, directory: Path, *, rerun: bool) -> int:
    """Lists the jobs and what is done; writes nothing."""
    if plan.total is not None:
        return _dry_run_search(console, plan.total, directory)
    found = scan(directory, _warn)
    claimed = claim(plan.jobs, without_other_code(found) if rerun else found)
    states = Counter[str]()
    for job in plan.jobs:
        one = claimed.get(job.key)
        if one is None:
            state = "new"
        elif one.is_done:
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
