"""Where a sweep stands: what is done, what a killed one left behind, what each job came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.locations import PROJECT
from runner.rundir.provenance import git_state
from runner.sweep import leaderboard
from runner.sweep.database import End, Known, OpenTry, Study
from runner.sweep.leaderboard import Row
from runner.sweep.local_process import LOG, is_open, wait_for_orphans
from runner.sweep.plan import Job, SweepPlan
from runner.sweep.run_index import (
    DONE,
    UNREADABLE,
    WAITING,
    Found,
    Outcome,
    claim,
    code_of,
    folders,
    outcome_of,
    read_result,
    scan,
)

_ORPHAN_GRACE_S = 30  # for jobs of a sweep that was killed to save


@dataclass
class Standing:
    """Where a sweep stands: by job's key, its folder's name, what came of it, earlier seconds."""

    plan: SweepPlan
    jobs: list[Job]
    directory: Path
    names: dict[str, str]
    outcomes: dict[str, Outcome]
    seconds_before: dict[str, float]
    study: Study
    known: dict[str, Known]  # to the database, when this sweep began
    found: list[Found]  # run directories that were there then
    num_others: int  # run directories in the sweep's folder that are none of its jobs
    other_code: int  # completed jobs that were made by other code than today's

    def place(self, job: Job) -> Path:
        return self.directory / self.names[job.key]

    def rows(self, front: Collection[str] = ()) -> list[Row]:
        """Best first. Args: front: keys of the jobs of a Pareto front."""
        rows = (Row(j, self.names[j.key], self.outcomes[j.key], j.key in front) for j in self.jobs)
        return leaderboard.ranked(rows, self.plan.direction)

    def admit(self, job: Job) -> None:
        """Takes up a job that has just been chosen; its run may be there already."""
        taken = set(self.names.values())
        claimed = claim([job], [f for f in self.found if f.folder not in taken])
        taken |= {f.folder for f in self.found}
        self.names |= folders([job], claimed, self.known, taken, self.directory)
        self.outcomes[job.key] = _outcome(job, claimed, self.known, self.plan)
        self.jobs.append(job)
        self.study.enter([(job, self.names[job.key])])


def take_stock(
    plan: SweepPlan,
    study: Study,
    directory: Path,
    warn: Callable[[str], None],
    *,
    rerun: bool = False,
) -> Standing:
    """What is done already, from the run directories; written into the database.

    Args: rerun: what other code has done does not count; it stays where it is.
    """
    open_tries = study.open_tries()
    _end_orphans(open_tries, directory, warn)
    found = scan(directory, warn)
    claimed = claim(plan.jobs, without_other_code(found) if rerun else found)
    known = study.known()
    names = folders(plan.jobs, claimed, known, [f.folder for f in found], directory)
    outcomes = {j.key: _outcome(j, claimed, known, plan) for j in plan.jobs}
    study.enter((j, names[j.key]) for j in plan.jobs)
    for one in open_tries:
        _close_try(study, one, directory)
    done = [j for j in plan.jobs if outcomes[j.key].is_done]
    study.settle((j.key, outcomes[j.key].status, None) for j in done)
    return Standing(
        plan=plan,
        jobs=list(plan.jobs),
        study=study,
        known=known,
        found=found,
        directory=directory,
        names=names,
        outcomes=outcomes,
        seconds_before={key: k.seconds for key, k in study.known().items()},
        num_others=sum(f.signature != UNREADABLE for f in found) - len(claimed),
        other_code=_other_code([claimed[j.key] for j in done]),
    )


def _outcome(
    job: Job, claimed: Mapping[str, Found], known: Mapping[str, Known], plan: SweepPlan
) -> Outcome:
    if job.key not in claimed:
        return WAITING
    seconds = known[job.key].seconds if job.key in known else None
    return outcome_of(claimed[job.key].result, plan, seconds=seconds)


def _end_orphans(tries: Sequence[OpenTry], directory: Path, warn: Callable[[str], None]) -> None:
    """Lets jobs that a killed sweep left behind finish saving, before they are started again."""
    alive = [t for t in tries if is_open(directory / t.folder / LOG)]
    if alive:
        count = "1 job" if len(alive) == 1 else f"{len(alive)} jobs"
        are = "is" if len(alive) == 1 else "are"
        warn(f"{count} of the sweep that was killed {are} still at work; waiting for the end")
        orphans = [(directory / t.folder / LOG, t.pid, t.pid_start) for t in alive]
        killed = wait_for_orphans(orphans, grace_s=_ORPHAN_GRACE_S)
        if killed:
            warn(f"not ended in {_ORPHAN_GRACE_S} s, so killed: {killed}")


def _close_try(study: Study, one: OpenTry, directory: Path) -> None:
    """The end that a killed sweep could not write down, as far as the job's files tell it."""
    folder = directory / one.folder
    try:
        ended = (folder / LOG).stat().st_mtime
    except OSError:
        ended = one.started
    result = read_result(folder)
    status = str(result.get("status")) if result else "interrupted"
    error = None if status in DONE else "the sweep was killed"
    study.end(one.id, one.job, End(status, max(0.0, ended - one.started), None, error))


def take_in(standing: Standing, job: Job, end: End, seconds: float) -> None:
    """What a job came to. Its process's end decides; its result has the numbers."""
    seconds += standing.seconds_before.get(job.key, 0.0)
    result = read_result(standing.place(job)) or {}
    outcome = outcome_of(result, standing.plan, seconds=seconds)
    standing.outcomes[job.key] = replace(outcome, status=end.status, error=end.error)


def save(standing: Standing, front: Collection[str] = ()) -> str | None:
    """Writes the leaderboard; returns what went wrong."""
    path = standing.directory / leaderboard.FILE
    try:
        leaderboard.write_csv(path, standing.rows(front), standing.plan)
    except OSError as error:
        return f"{path} could not be written: {error.strerror or error}"
    return None


def _other_code(done: Sequence[Found]) -> int:
    """How many runs were made by another commit, or other uncommitted changes, than today's."""
    return len(done) - len(without_other_code(done))


def without_other_code(found: Sequence[Found]) -> list[Found]:
    """Only the runs that are not done yet, or whose code is today's or not known."""
    if not any(f.code for f in found):
        return list(found)
    today = code_of(git_state(PROJECT))
    return [f for f in found if not f.is_done or f.code in (None, today)]
