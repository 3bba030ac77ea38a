"""`python -m runner -m ...`: checks all jobs, runs those that are not done, shows the results."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from runner.errors import UserError, shell_path
from runner.machine.imports import end_imports
from runner.reporting.report.leaderboard import Leaderboard
from runner.reporting.report.terminal import make_console, print_line, show_leaderboard
from runner.rundir.lock import FolderLock, describe_holder
from runner.rundir.sweep_folder import LEADERBOARD_FILE
from runner.sweep.database import SweepDatabase, SweepDatabaseError, command_facts, read_job_states
from runner.sweep.grid import GridJobs
from runner.sweep.hydra_launcher import choose_launcher
from runner.sweep.live_view import LiveView
from runner.sweep.local_process import JOB_LOG_FILE, JobStarter
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.pruning import pruning_responder
from runner.sweep.run_index import Outcome, match_runs, scan_runs
from runner.sweep.scheduler import JobScheduler
from runner.sweep.search import SearchJobs, SearchSpec
from runner.sweep.stop_signal import catch_stop_signals
from runner.sweep.sweep_state import (
    SweepState,
    drop_runs_of_other_code,
    load_sweep_state,
    record_outcome,
    write_leaderboard,
)

_LEADERBOARD_EVERY_S = 5  # so that a killed sweep leaves a recent page
_MAX_FAILURES_SHOWN = 20  # errors of jobs that are shown at the end


@dataclass(frozen=True)
class SweepOptions:
    """Options of a sweep from the command line, besides its jobs."""

    flags: Sequence[str] = ()  # flags that are passed to every job, too
    command: Sequence[str] = ()  # the whole command, for the record
    resume_arguments: Sequence[str] = ()  # the words of it that `resume` repeats
    dry_run: bool = False
    rerun: bool = False  # whether jobs done by other code are repeated
    # its name and settings; None: jobs run on this machine
    launcher_plugin: tuple[str, tuple[str, ...]] | None = None
    # returns what starts jobs
    make_starter: Callable[[SweepPlan, Sequence[str], str], JobStarter] = choose_launcher


def run_sweep(plan: SweepPlan, options: SweepOptions, search: SearchSpec | None = None) -> int:
    """Run a checked sweep, each job in its own process, and show the results; or list its jobs.

    Args:
        plan: the checked sweep.
        options: what else the command line says.
        search: chooses the jobs one by one; None: they are those of the plan.

    Returns:
        The exit code: 0, 1 if a job failed, 130 or 143 after a signal.

    Raises:
        UserError: before anything has started.
    """
    end_imports()
    console = make_console(draws=True)
    if options.rerun and plan.num_trials is not None:
        raise UserError(
            "--rerun changed: a search has chosen its jobs by the results of the others; another "
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
        _dry_run(console, plan, rerun=options.rerun)
        return 0
    with _locked(directory), closing(SweepDatabase(directory, _warn)) as database:
        source = GridJobs(plan, database) if search is None else SearchJobs(search, plan, database)
        with closing(source):
            facts_of_command = command_facts(options.resume_arguments, os.getcwd())
            facts = {"command": list(options.command), "metric": plan.metric}
            database.write_facts({**facts, **facts_of_command})
            start_job = options.make_starter(source.plan, options.flags, directory.name)
            state = load_sweep_state(source.plan, database, _warn, rerun=options.rerun)
            return _run_jobs(console, source, state, start_job)


def _run_jobs(
    console: Console, source: GridJobs | SearchJobs, state: SweepState, start_job: JobStarter
) -> int:
    plan = source.plan
    done = [(j, o) for j in plan.jobs if (o := state.outcomes[j.key]).is_done]
    finished = [pair for pair in done for _ in range(source.num_trials(pair[0]))]
    _announce(console, state)
    with catch_stop_signals() as stop_request:
        with LiveView(console, plan, finished) as view:
            scheduler = JobScheduler(
                *(start_job, plan.launcher, state.database, stop_request, view, state.job_folder)
            )
            if isinstance(source, SearchJobs):
                scheduler.answer_pruning = pruning_responder(source)
                source.tell_known = view.known
            last_write = time.monotonic()
            for job, try_result in scheduler.run(source.jobs(state)):
                record_outcome(state, job, try_result)
                outcome = state.outcomes[job.key]
                view.ended(job, try_result, outcome, source.num_trials(job))
                _report_outcome(scheduler, source, job, outcome)
                if time.monotonic() - last_write > _LEADERBOARD_EVERY_S:
                    write_leaderboard(state, source.pareto_front())
                    last_write = time.monotonic()
        pareto_front = source.pareto_front()
        write_error = write_leaderboard(state, pareto_front)
        _show_summary(console, state.leaderboard(pareto_front), state.directory)
        # A second Ctrl-C does not wait for the page to be drawn; `report DIR` makes it later.
        if not stop_request.is_immediate:
            _write_page(console, state.directory)
    if write_error is not None:
        _warn(write_error)
    if scheduler.failure is not None:
        _warn(f"the sweep stopped: {scheduler.failure}")
    if write_error or scheduler.failure:
        return 1
    if stop_request.requested:
        _warn("stopped; the same command goes on from here")
        return stop_request.exit_code
    return 0 if all(o.is_done for o in state.outcomes.values()) else 1


def _report_outcome(
    scheduler: JobScheduler, source: GridJobs | SearchJobs, job: SweepJob, outcome: Outcome
) -> None:
    """Pass a job's outcome to the source of jobs, and stop the sweep if the source fails."""
    try:
        problem = source.receive_outcome(job, outcome)
    except SweepDatabaseError as error:
        problem = str(error)
    if problem is not None:
        scheduler.abort(problem)


def _announce(console: Console, state: SweepState) -> None:
    num_done = sum(o.is_done for o in state.outcomes.values())
    slots = state.plan.launcher.slots
    parts = [_count(state.plan.num_jobs, "job"), f"{num_done} done already" if num_done else ""]
    parts += ["one at a time" if slots == 1 else f"{slots} at a time"]
    print_line(console, f"sweep {state.directory}: {', '.join(p for p in parts if p)}")
    # a search that lost its database chooses its jobs anew, and finds their runs here then
    if state.num_unrelated_runs and len(state.jobs) == state.plan.num_jobs:
        print_line(
            console,
            f"the directory also has {_count(state.num_unrelated_runs, 'run')} with other values, "
            "other defaults or other code, left alone and not in this leaderboard",
        )
    if state.num_jobs_of_other_code:
        _warn(
            f"{_count(state.num_jobs_of_other_code, 'finished job')} ran other code than today's "
            "(see git in meta.json); --rerun changed runs them again"
        )


def _show_summary(console: Console, board: Leaderboard, directory: Path) -> None:
    show_leaderboard(console, board, with_errors=True)
    print_line(console, f"{board.counts or 'no jobs'}; all are in {directory / LEADERBOARD_FILE}")
    failures = [run for run in board.runs if run.error]
    counts = Counter(run.error for run in failures)
    firsts = list({run.error: run for run in reversed(failures)}.values())[::-1]
    for run in firsts[:_MAX_FAILURES_SHOWN]:
        alike = counts[run.error] - 1
        others = f"; {_count(alike, 'other job')} failed with the same error" if alike else ""
        job = " ".join(f"{k}={v}" for k, v in run.settings.items()) or "the only job"
        _warn(f"{run.status}: {job}: {run.error}  ({run.folder / JOB_LOG_FILE}){others}")
    if len(firsts) > _MAX_FAILURES_SHOWN:
        num_hidden = len(firsts) - _MAX_FAILURES_SHOWN
        _warn(f"and {_count(num_hidden, 'other error')}; {LEADERBOARD_FILE} lists all")


def _write_page(console: Console, directory: Path) -> None:
    """Write the `report.html` of the sweep, also after failures and the first Ctrl-C."""
    from runner.reporting.report.write import write_report

    try:
        print_line(console, f"report: {write_report(directory)}")
    except Exception as error:  # the runs are done and saved, whether or not the page works
        advice = f"`python -m runner report {shell_path(directory)}` tries again"
        _warn(f"report.html could not be written: {error}; {advice}")


def _dry_run(console: Console, plan: SweepPlan, *, rerun: bool) -> None:
    """List the jobs, which are done, and how many a search will choose; write nothing."""
    directory = Path(plan.directory)
    is_search = plan.num_trials is not None
    states = read_job_states(directory) if is_search else _grid_states(plan, directory, rerun)
    for status, label in states:
        print_line(console, f"{status:<12}{label}")
    counts = [f"{count} {status}" for status, count in Counter(s for s, _ in states).items()]
    num_coming = max(0, plan.num_jobs - len(states))
    counts += [f"{num_coming} to be chosen"] if num_coming else []
    total = _count(len(states) + num_coming, "job")
    print_line(console, f"{total}: {', '.join(counts)}; in {directory}")


def _grid_states(plan: SweepPlan, directory: Path, rerun: bool) -> list[tuple[str, str]]:
    """Return status and label of each job of a grid."""
    runs = scan_runs(directory, _warn)
    matched = match_runs(plan.jobs, drop_runs_of_other_code(runs) if rerun else runs)
    states = []
    for job in plan.jobs:
        run = matched.get(job.key)
        if run is None:
            states.append(("new", job.label))
            continue
        status = "done" if run.is_done else (run.result or {}).get("status", "interrupted")
        states.append((str(status), f"{job.label}  ({run.folder})"))
    return states


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory for one sweep.

    Raises:
        UserError: naming the sweep that has the lock, or why the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(directory)
    except UserError:
        raise UserError(
            f"{directory}: another sweep is running here: {describe_holder(directory)}; wait for "
            "it, or choose another place with hydra.sweep.dir=DIR"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        way_out = (
            "a copy of the folder elsewhere can be resumed"
            if os.path.exists(directory / "study.db")
            else "hydra.sweep.dir=DIR puts it elsewhere"
        )
        raise UserError(
            f"{directory}: cannot write the sweep's directory: {reason}; {way_out}"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
