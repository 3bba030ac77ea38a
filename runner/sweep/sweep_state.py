"""The state of a sweep: what is done, what a killed sweep left behind, how each job ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.locations import PROJECT
from runner.reporting.report.columns import short_headings
from runner.reporting.report.leaderboard import Leaderboard, rank_runs, sweep_column_metrics
from runner.reporting.report.leaderboard import write_leaderboard as write_leaderboard_file
from runner.reporting.report.records import RunRecord
from runner.rundir.provenance import changed_own_code, git_state
from runner.rundir.sweep_folder import LEADERBOARD_FILE
from runner.sweep.database import SweepDatabase, TryResult, UnfinishedTry
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
    find_ranking_metric,
    match_runs,
    outcome_from_result,
    read_result_if_whole,
    scan_runs,
)

_ORPHAN_GRACE_S = 30  # in which jobs of a killed sweep may save


@dataclass
class SweepState:
    """How far a sweep has come. Mappings have the job's key as theirs."""

    plan: SweepPlan
    jobs: list[SweepJob]  # all that are known; a search adds to them
    directory: Path
    folder_names: dict[str, str]  # the name of each job's folder in the sweep's directory
    outcomes: dict[str, Outcome]
    database: SweepDatabase
    recorded_folders: Mapping[str, str]  # names in the database when this sweep began
    run_directories: list[RunDirectory]  # those that were there when this sweep began
    num_unrelated_runs: int  # run directories in the sweep's folder that belong to none of its jobs
    num_jobs_of_other_code: int  # done jobs that were made by other code than today's

    def job_folder(self, job: SweepJob) -> Path:
        return self.directory / self.folder_names[job.key]

    def leaderboard(self, pareto_front: Collection[str] = ()) -> Leaderboard:
        """Return all jobs, the best first.

        Args:
            pareto_front: keys of the jobs of a Pareto front.
        """
        results = ((job, self.job_folder(job), self.outcomes[job.key]) for job in self.jobs)
        return make_leaderboard(self.plan, results, pareto_front)

    def add_job(self, job: SweepJob) -> None:
        """Add a job that has just been chosen. Its run may be there already."""
        used_names = set(self.folder_names.values())
        matched = match_runs([job], [r for r in self.run_directories if r.folder not in used_names])
        used_names |= {r.folder for r in self.run_directories}
        self.folder_names |= assign_folders(
            [job], matched, self.recorded_folders, used_names, self.directory
        )
        self.outcomes[job.key] = _outcome(job, matched, self.plan)
        self.jobs.append(job)
        self.database.add_jobs([(job, self.folder_names[job.key])])


def load_sweep_state(
    plan: SweepPlan, database: SweepDatabase, warn: Callable[[str], None], *, rerun: bool = False
) -> SweepState:
    """Read from the run directories what is done, and bring the database up to date.

    Args:
        rerun: jobs that were done by other code do not count; their folders stay as they are.
    """
    directory, unfinished_tries = Path(plan.directory), database.unfinished_tries()
    _end_orphans(unfinished_tries, directory, warn)
    runs = scan_runs(directory, warn)
    matched = match_runs(plan.jobs, drop_runs_of_other_code(runs) if rerun else runs)
    recorded = database.job_folders()
    names = assign_folders(plan.jobs, matched, recorded, [r.folder for r in runs], directory)
    outcomes = {j.key: _outcome(j, matched, plan) for j in plan.jobs}
    database.add_jobs((j, names[j.key]) for j in plan.jobs)
    for unfinished in unfinished_tries:
        _close_try(database, unfinished, directory)
    finished = [j for j in plan.jobs if outcomes[j.key].is_done]
    database.set_statuses((j.key, outcomes[j.key].status, None) for j in finished)
    of_this_code = drop_runs_of_other_code([matched[j.key] for j in finished])
    return SweepState(
        plan=plan,
        jobs=list(plan.jobs),
        database=database,
        recorded_folders=recorded,
        run_directories=runs,
        directory=directory,
        folder_names=names,
        outcomes=outcomes,
        num_unrelated_runs=sum(r.signature != UNREADABLE_SIGNATURE for r in runs) - len(matched),
        num_jobs_of_other_code=len(finished) - len(of_this_code),
    )


def _outcome(job: SweepJob, matched: Mapping[str, RunDirectory], plan: SweepPlan) -> Outcome:
    if job.key not in matched:
        return WAITING
    return outcome_from_result(matched[job.key].result, plan)


def _end_orphans(
    tries: Sequence[UnfinishedTry], directory: Path, warn: Callable[[str], None]
) -> None:
    """Let jobs that a killed sweep left behind save, before they are started again."""
    alive = [t for t in tries if is_log_open(directory / t.folder / JOB_LOG_FILE)]
    if not alive:
        return
    count = "1 job" if len(alive) == 1 else f"{len(alive)} jobs"
    are = "is" if len(alive) == 1 else "are"
    warn(f"{count} of the sweep that was killed {are} still at work; waiting for the end")
    orphans = [(directory / t.folder / JOB_LOG_FILE, t.pid, t.pid_start) for t in alive]
    num_killed = wait_for_orphans(orphans, grace_s=_ORPHAN_GRACE_S)
    if num_killed:
        warn(f"{num_killed} had not ended after {_ORPHAN_GRACE_S} s and had to be killed")


def _close_try(database: SweepDatabase, unfinished: UnfinishedTry, directory: Path) -> None:
    """Record the end that a killed sweep could not record, as far as the job's files show it."""
    folder = directory / unfinished.folder
    try:
        ended = (folder / JOB_LOG_FILE).stat().st_mtime
    except OSError:
        ended = unfinished.started
    result = read_result_if_whole(folder)
    status = str(result.get("status")) if result else "interrupted"
    error = None if status in DONE_STATUSES else "the sweep was killed"
    seconds = max(0.0, ended - unfinished.started)
    database.end_try(unfinished.id, unfinished.job, TryResult(status, seconds, None, error))


def record_outcome(state: SweepState, job: SweepJob, try_result: TryResult) -> None:
    """Record how a job ended. Its process decides on the status; its result has the numbers.

    Args:
        state: is changed.
    """
    outcome = outcome_from_result(read_result_if_whole(state.job_folder(job)) or {}, state.plan)
    state.outcomes[job.key] = replace(outcome, status=try_result.status, error=try_result.error)


def write_leaderboard(state: SweepState, pareto_front: Collection[str] = ()) -> str | None:
    """Write `leaderboard.csv` and return what went wrong; None if nothing did."""
    try:
        write_leaderboard_file(state.directory, state.leaderboard(pareto_front))
    except OSError as error:
        path = state.directory / LEADERBOARD_FILE
        return f"{path} could not be written: {error.strerror or error}"
    return None


def drop_runs_of_other_code(runs: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Return the runs that are not done yet, or whose code is today's or not known."""
    if not any(r.code_version or r.own_code for r in runs):
        return list(runs)
    today = code_version(git_state(PROJECT))
    changed = {frozenset(r.own_code.items()) for r in runs}
    changed = {code for code in changed if changed_own_code(dict(code))}
    return [
        r
        for r in runs
        if not r.is_done
        or (r.code_version in (None, today) and frozenset(r.own_code.items()) not in changed)
    ]


_TEST_COLUMNS_SHOWN = 3


def make_leaderboard(
    plan: SweepPlan,
    results: Iterable[tuple[SweepJob, Path, Outcome]],
    pareto_front: Collection[str] = (),
) -> Leaderboard:
    """Return the jobs of a sweep, the best first."""
    results = list(results)
    runs = [
        RunRecord(
            folder=folder,
            label=folder.name,
            status=outcome.status,
            signature=job.signature,
            seed=job.seed,
            settings=job.varying,
            step=outcome.step,
            metrics={**outcome.column_metrics, **_objective_values(plan, outcome)},
            best_step=outcome.best_step,
            seconds=outcome.seconds,
            error=outcome.error,
            is_pareto_optimal=job.key in pareto_front,
        )
        for job, folder, outcome in results
    ]
    metric = find_ranking_metric(plan, (outcome for _, _, outcome in results)) or plan.metric
    keys = tuple(key for key in plan.varying if key != "seed")
    tests = sweep_column_metrics(runs, metric)[:_TEST_COLUMNS_SHOWN]
    is_measured = not tests or any(metric in run.metrics for run in runs)  # not by tuners
    return Leaderboard(
        runs=tuple(rank_runs(runs, metric, plan.direction)),
        keys=keys,
        headings=short_headings(keys),
        monitor=(metric, plan.direction),
        metrics=tuple(
            dict.fromkeys([*([metric] * is_measured), *plan.secondary_objectives, *tests])
        ),
        secondary_objectives=tuple(plan.secondary_objectives),
        label_heading=None,
        unit="jobs",
        file=LEADERBOARD_FILE,
    )


def _objective_values(plan: SweepPlan, outcome: Outcome) -> dict[str, float]:
    values = {plan.metric: outcome.best, **outcome.secondary_values}
    return {name: value for name, value in values.items() if value is not None}
