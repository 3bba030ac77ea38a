"""Where a sweep stands: what is done, what a killed one left behind, what each job came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.locations import PROJECT
from runner.rundir.provenance import git_state
from runner.sweep import leaderboard
from runner.sweep.database import JobRecord, SweepDatabase, TryResult, UnfinishedTry
from runner.sweep.leaderboard import LeaderboardRow
from runner.sweep.local_process import JOB_LOG_FILE, is_log_open, wait_for_orphans
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import (
    DONE_STATUSES,
    UNREADABLE_SIGNATURE,
    WAITING,
    Outcome,
    RunDirectory,
    assign_folders,
    code_version,
    match_runs,
    outcome_from_result,
    read_result,
    scan_runs,
)

_ORPHAN_GRACE_S = 30  # for jobs of a sweep that was killed to save


@dataclass
class SweepState:
    """Where a sweep stands: by job's key, its folder's name, what came of it, earlier seconds."""

    plan: SweepPlan
    jobs: list[SweepJob]
    directory: Path
    folder_names: dict[str, str]
    outcomes: dict[str, Outcome]
    seconds_before: dict[str, float]
    database: SweepDatabase
    job_records: dict[str, JobRecord]  # to the database, when this sweep began
    run_directories: list[RunDirectory]  # run directories that were there then
    num_unrelated_runs: int  # run directories in the sweep's folder that are none of its jobs
    num_jobs_of_other_code: int  # completed jobs that were made by other code than today's

    def job_folder(self, job: SweepJob) -> Path:
        return self.directory / self.folder_names[job.key]

    def rows(self, front: Collection[str] = ()) -> list[LeaderboardRow]:
        """Best first. Args: front: keys of the jobs of a Pareto front."""
        rows = (
            LeaderboardRow(j, self.folder_names[j.key], self.outcomes[j.key], j.key in front)
            for j in self.jobs
        )
        return leaderboard.rank_rows(rows, self.plan.direction)

    def add_job(self, job: SweepJob) -> None:
        """Takes up a job that has just been chosen; its run may be there already."""
        taken = set(self.folder_names.values())
        claimed = match_runs([job], [f for f in self.run_directories if f.folder not in taken])
        taken |= {f.folder for f in self.run_directories}
        self.folder_names |= assign_folders([job], claimed, self.job_records, taken, self.directory)
        self.outcomes[job.key] = _outcome(job, claimed, self.job_records, self.plan)
        self.jobs.append(job)
        self.database.add_jobs([(job, self.folder_names[job.key])])


def load_sweep_state(
    plan: SweepPlan,
    database: SweepDatabase,
    directory: Path,
    warn: Callable[[str], None],
    *,
    rerun: bool = False,
) -> SweepState:
    """What is done already, from the run directories; written into the database.

    Args: rerun: what other code has done does not count; it stays where it is.
    """
    open_tries = database.unfinished_tries()
    _end_orphans(open_tries, directory, warn)
    found = scan_runs(directory, warn)
    claimed = match_runs(plan.jobs, drop_runs_of_other_code(found) if rerun else found)
    known = database.job_records()
    names = assign_folders(plan.jobs, claimed, known, [f.folder for f in found], directory)
    outcomes = {j.key: _outcome(j, claimed, known, plan) for j in plan.jobs}
    database.add_jobs((j, names[j.key]) for j in plan.jobs)
    for one in open_tries:
        _close_try(database, one, directory)
    done = [j for j in plan.jobs if outcomes[j.key].is_done]
    database.set_statuses((j.key, outcomes[j.key].status, None) for j in done)
    return SweepState(
        plan=plan,
        jobs=list(plan.jobs),
        database=database,
        job_records=known,
        run_directories=found,
        directory=directory,
        folder_names=names,
        outcomes=outcomes,
        seconds_before={key: k.seconds for key, k in database.job_records().items()},
        num_unrelated_runs=sum(f.signature != UNREADABLE_SIGNATURE for f in found) - len(claimed),
        num_jobs_of_other_code=_count_other_code([claimed[j.key] for j in done]),
    )


def _outcome(
    job: SweepJob,
    claimed: Mapping[str, RunDirectory],
    known: Mapping[str, JobRecord],
    plan: SweepPlan,
) -> Outcome:
    if job.key not in claimed:
        return WAITING
    seconds = known[job.key].seconds if job.key in known else None
    return outcome_from_result(claimed[job.key].result, plan, seconds=seconds)


def _end_orphans(
    tries: Sequence[UnfinishedTry], directory: Path, warn: Callable[[str], None]
) -> None:
    """Lets jobs that a killed sweep left behind finish saving, before they are started again."""
    alive = [t for t in tries if is_log_open(directory / t.folder / JOB_LOG_FILE)]
    if alive:
        count = "1 job" if len(alive) == 1 else f"{len(alive)} jobs"
        are = "is" if len(alive) == 1 else "are"
        warn(f"{count} of the sweep that was killed {are} still at work; waiting for the end")
        orphans = [(directory / t.folder / JOB_LOG_FILE, t.pid, t.pid_start) for t in alive]
        killed = wait_for_orphans(orphans, grace_s=_ORPHAN_GRACE_S)
        if killed:
            warn(f"not ended in {_ORPHAN_GRACE_S} s, so killed: {killed}")


def _close_try(study: SweepDatabase, one: UnfinishedTry, directory: Path) -> None:
    """The end that a killed sweep could not write down, as far as the job's files tell it."""
    folder = directory / one.folder
    try:
        ended = (folder / JOB_LOG_FILE).stat().st_mtime
    except OSError:
        ended = one.started
    result = read_result(folder)
    status = str(result.get("status")) if result else "interrupted"
    error = None if status in DONE_STATUSES else "the sweep was killed"
    study.end_try(one.id, one.job, TryResult(status, max(0.0, ended - one.started), None, error))


def record_outcome(state: SweepState, job: SweepJob, try_result: TryResult, seconds: float) -> None:
    """What a job came to. Its process's end decides; its result has the numbers."""
    seconds += state.seconds_before.get(job.key, 0.0)
    result = read_result(state.job_folder(job)) or {}
    outcome = outcome_from_result(result, state.plan, seconds=seconds)
    state.outcomes[job.key] = replace(outcome, status=try_result.status, error=try_result.error)


def write_leaderboard(state: SweepState, front: Collection[str] = ()) -> str | None:
    """Writes the leaderboard; returns what went wrong."""
    path = state.directory / leaderboard.LEADERBOARD_FILE
    try:
        leaderboard.write_csv(path, state.rows(front), state.plan)
    except OSError as error:
        return f"{path} could not be written: {error.strerror or error}"
    return None


def _count_other_code(done: Sequence[RunDirectory]) -> int:
    """How many runs were made by another commit, or other uncommitted changes, than today's."""
    return len(done) - len(drop_runs_of_other_code(done))


def drop_runs_of_other_code(runs: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Only the runs that are not done yet, or whose code is today's or not known."""
    if not any(f.code_version for f in runs):
        return list(runs)
    today = code_version(git_state(PROJECT))
    return [f for f in runs if not f.is_done or f.code_version in (None, today)]
