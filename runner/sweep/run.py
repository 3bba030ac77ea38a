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
from runner.rundir.lock import FolderLock, describe_holder
from runner.sweep import leaderboard
from runner.sweep.database import SweepDatabase, SweepDatabaseError, read_job_states
from runner.sweep.grid import GridJobs
from runner.sweep.live_view import CheckProgress, LiveView
from runner.sweep.local_process import JOB_LOG_FILE, JobStarter
from runner.sweep.plan import CheckedJob, SweepJob, SweepPlan, plan_sweep
from runner.sweep.pruning import pruning_responder
from runner.sweep.run_index import Outcome, match_runs, scan_runs
from runner.sweep.scheduler import JobScheduler
from runner.sweep.search import SearchJobs, plan_search
from runner.sweep.space import Space
from runner.sweep.start_jobs import choose_launcher
from runner.sweep.stop_signal import catch_stop_signals
from runner.sweep.sweep_state import (
    SweepState,
    drop_runs_of_other_code,
    load_sweep_state,
    record_outcome,
    write_leaderboard,
)

_LEADERBOARD_EVERY_S = 5  # so that a sweep that is killed leaves a recent one
_FILE_WIDTH = 140  # columns of text
_MAX_FAILURES_SHOWN = 20  # failed jobs that are named at the end


@dataclass(frozen=True)
class SweepOptions:
    """What the command line says of a sweep besides its jobs.

    flags: words that are no overrides and that every job gets too; command: the whole command, for
    the record; words: of it, what `resume` gives again; rerun: what other code has done is done
    again; elsewhere: a launcher plugin and its settings; start: how jobs are begun.
    """

    flags: Sequence[str] = ()
    command: Sequence[str] = ()
    resume_arguments: Sequence[str] = ()
    dry_run: bool = False
    rerun: bool = False
    launcher_plugin: tuple[str, tuple[str, ...]] | None = None
    make_starter: Callable[[SweepPlan, Sequence[str], str], JobStarter] = choose_launcher


def run_sweep(
    jobs: Sequence[Sequence[str]],
    *,
    check: Callable[[Sequence[str]], CheckedJob],
    options: SweepOptions = SweepOptions(),
) -> int:
    """Runs a job for each list of overrides, in processes of their own, and shows what came of it.

    Args: check: composes and checks one job without importing torch, and raises UserError.
    Returns: the exit code: 0, 1 if a job failed, 130 or 143 after a signal.
    Raises: UserError before anything has started.
    """
    console = _console()
    plan = plan_sweep(jobs, check, progress=CheckProgress(console))
    return run_plan(console, plan, GridJobs, options)


def run_search(
    fixed: Sequence[str],
    space: Space,
    settings: SearchSettings,
    *,
    check: Callable[[Sequence[str]], CheckedJob],
    options: SweepOptions,
) -> int:
    """The same for jobs that are chosen one by one. Args: fixed: overrides of every job."""
    console = _console()
    plan, wanted = plan_search(fixed, space, settings, check)
    return run_plan(
        console, plan, lambda p, study: SearchJobs(wanted, p, Path(p.directory)), options
    )


def run_plan(
    console: Console,
    plan: SweepPlan,
    make_source: Callable[[SweepPlan, SweepDatabase], GridJobs | SearchJobs],
    options: SweepOptions,
) -> int:
    """Args: make_source: the source of jobs, once the directory is this sweep's."""
    if options.rerun and plan.num_trials is not None:
        raise UserError(
            "--rerun changed: a search has chosen its jobs by what the others came to; another "
            "hydra.sweep.dir begins a new one"
        )
    plan = replace(plan, launcher_plugin=options.launcher_plugin)
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
        study = SweepDatabase(directory, _warn)
        try:
            source = make_source(plan, study)
            try:
                facts = {"command": list(options.command), "words": list(options.resume_arguments)}
                study.write_facts({**facts, "cwd": os.getcwd(), "metric": plan.metric})
                start = options.make_starter(source.plan, options.flags, directory.name)
                standing = load_sweep_state(
                    source.plan, study, directory, _warn, rerun=options.rerun
                )
                return _sweep(console, source, standing, start)
            finally:
                source.close()
        finally:
            study.close()


def _sweep(
    console: Console, source: GridJobs | SearchJobs, standing: SweepState, start: JobStarter
) -> int:
    plan, study = source.plan, standing.database
    done = [(j, o) for j in plan.jobs if (o := standing.outcomes[j.key]).is_done]
    _announce(console, standing)
    with catch_stop_signals() as stopping:
        with LiveView(console, plan, done) as board:
            engine = JobScheduler(start, plan.launcher, study, stopping, board, standing.job_folder)
            engine.answer_pruning = (
                pruning_responder(source) if isinstance(source, SearchJobs) else None
            )
            saved = time.monotonic()
            for job, end in engine.run(source.jobs(standing)):
                record_outcome(standing, job, end, engine.seconds_by_job[job.key])
                outcome = standing.outcomes[job.key]
                board.ended(job, end, outcome)
                _report_outcome(engine, source, job, outcome)
                if time.monotonic() - saved > _LEADERBOARD_EVERY_S:
                    write_leaderboard(standing, source.pareto_front())
                    saved = time.monotonic()
        front = source.pareto_front()
        unsaved = write_leaderboard(standing, front)
        _show_summary(console, standing, front)
        if not stopping.is_immediate:  # a second Ctrl-C waits for no drawing; `report DIR` makes it
            _write_page(console, standing.directory)
    if unsaved is not None:
        _warn(unsaved)
    if engine.failure is not None:
        _warn(f"the sweep stopped: {engine.failure}")
    if unsaved or engine.failure:
        return 1
    if stopping.requested:
        _warn("stopped; the same command goes on from here")
        return stopping.exit_code
    return 0 if all(o.is_done for o in standing.outcomes.values()) else 1


def _report_outcome(
    engine: JobScheduler, source: GridJobs | SearchJobs, job: SweepJob, outcome: Outcome
) -> None:
    """What a job came to, to where jobs come from; if that makes no sense of it the sweep stops."""
    try:
        trouble = source.receive_outcome(job, outcome)
    except SweepDatabaseError as error:
        trouble = str(error)
    if trouble is not None:
        engine.abort(trouble)


def _announce(console: Console, standing: SweepState) -> None:
    plan = standing.plan
    done = sum(o.is_done for o in standing.outcomes.values())
    slots = plan.launcher.slots
    parts = [_count(plan.num_jobs, "job"), f"{done} done already" if done else ""]
    parts += ["one at a time" if slots == 1 else f"{slots} at a time"]
    _say(console, f"sweep {standing.directory}: {', '.join(p for p in parts if p)}")
    if standing.num_unrelated_runs:
        _say(
            console,
            f"beside these jobs there: {_count(standing.num_unrelated_runs, 'run')} with other values or "
            "other defaults, left alone and not in this leaderboard",
        )
    if standing.num_jobs_of_other_code:
        _warn(
            f"made by other code than today's (see git in meta.json): "
            f"{_count(standing.num_jobs_of_other_code, 'finished job')}; --rerun changed runs them again"
        )


def _show_summary(console: Console, standing: SweepState, front: Collection[str]) -> None:
    rows = standing.rows(front)
    leaderboard.show_leaderboard(console, rows, standing.plan)
    counts = Counter(r.outcome.status for r in rows)
    _say(
        console,
        f"{leaderboard.format_status_counts(counts)}: {standing.directory / leaderboard.LEADERBOARD_FILE}",
    )
    bad = [r for r in rows if r.outcome.error]
    for row in bad[:_MAX_FAILURES_SHOWN]:
        where = standing.directory / row.folder / JOB_LOG_FILE
        _warn(f"{row.outcome.status}: {row.job.label}: {row.outcome.error}  ({where})")
    if len(bad) > _MAX_FAILURES_SHOWN:
        _warn(
            f"and {len(bad) - _MAX_FAILURES_SHOWN} more; {leaderboard.LEADERBOARD_FILE} has them all"
        )


def _write_page(console: Console, directory: Path) -> None:
    """`report.html` of the sweep, also after failures and the first Ctrl-C."""
    from runner.reporting.report.write import write_report

    try:
        _say(console, f"report: {write_report(directory)}")
    except Exception as error:  # the runs are done and on disk, whatever is wrong with a page
        _warn(f"report.html could not be written: {error}; `report {directory}` tries again")


def _dry_run_search(console: Console, total: int, directory: Path) -> int:
    """Which trials there are and how many are to be chosen; writes nothing."""
    states = Counter[str]()
    for state, label in read_job_states(directory):
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
    if plan.num_trials is not None:
        return _dry_run_search(console, plan.num_trials, directory)
    found = scan_runs(directory, _warn)
    claimed = match_runs(plan.jobs, drop_runs_of_other_code(found) if rerun else found)
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
        lock = FolderLock(directory)
    except UserError:
        raise UserError(
            f"{directory}: another sweep is running here: {describe_holder(directory)}; wait for it, or "
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
