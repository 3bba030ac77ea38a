"""Finds the run directories of a sweep, and the job that each of them belongs to."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.reporting.report.leaderboard import COLUMN_SPLITS
from runner.rundir.readers import as_number, finite_or_none, numeric_values, read_signed_meta
from runner.rundir.run_files import read_result
from runner.sweep.plan import SweepJob, SweepPlan, job_overrides, slug

DONE_STATUSES = ("completed", "pruned")
UNREADABLE_SIGNATURE = ""  # the signature of a folder with a damaged meta.json; no job has it


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job, from its `result.json` or else from its process."""

    status: str  # completed, pruned, interrupted, failed or waiting
    error: str | None = None
    best: float | None = None  # the best value of the metric by which jobs are ranked
    best_step: int | None = None
    # metrics of the test split, and values of a tuner, by `split/name`
    column_metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    seconds: float | None = None  # of work, over all its tries
    # further objectives of a search
    secondary_values: Mapping[str, float | None] = field(default_factory=dict)
    result_names: tuple[str, ...] = ()  # names of all numbers in the result

    def ranking_value(self, metric: str) -> float | None:
        """Return the value of a metric of `find_ranking_metric`."""
        return finite_or_none(self.column_metrics.get(metric)) if self.best is None else self.best

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"

    @property
    def is_done(self) -> bool:
        return self.status in DONE_STATUSES


WAITING = Outcome("waiting")


@dataclass(frozen=True)
class RunDirectory:
    """A run directory in the sweep's folder."""

    folder: str  # its name there
    signature: str
    overrides: frozenset[str]
    code_version: str | None  # of the code that made the run: commit and uncommitted changes
    # `result.json`; None if there is none, or it is damaged: then the job is not done
    result: Mapping[str, Any] | None
    created: float = 0.0  # seconds since 1970
    # hashes of the files of the user's packages that made the run
    own_code: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.result is not None and self.result.get("status") in DONE_STATUSES


def scan_runs(directory: Path, warn: Callable[[str], None]) -> list[RunDirectory]:
    """Return every run directory in the sweep's folder, in the order of their names.

    One that cannot be read is reported and left alone.
    """
    if not directory.is_dir():
        return []
    runs = []
    for entry in os.scandir(directory):
        if not entry.is_dir(follow_symlinks=False):
            continue
        try:
            run = read_run_directory(Path(entry.path))
        except UserError as error:
            warn(f"{error}; its job is run in another folder")
            run = RunDirectory(entry.name, UNREADABLE_SIGNATURE, frozenset(), None, None)
        if run is not None:
            runs.append(run)
    return sorted(runs, key=lambda r: r.folder)


def read_run_directory(folder: Path) -> RunDirectory | None:
    """Return a run directory's identity and result; None for one without a `meta.json` yet.

    Raises:
        UserError: if `meta.json` is damaged.
    """
    if not (folder / "meta.json").exists():
        return None
    meta = read_signed_meta(folder)
    return RunDirectory(
        folder=folder.name,
        signature=meta["signature"],
        overrides=frozenset(job_overrides(meta.get("overrides") or ())),
        code_version=code_version(meta.get("git")),
        own_code=meta.get("own_code") or {},
        result=read_result_if_whole(folder),
        created=(folder / "meta.json").stat().st_mtime,
    )


def read_result_if_whole(folder: Path) -> Mapping[str, Any] | None:
    """Return `result.json`; None if it is absent or damaged: then the job is not done."""
    try:
        return read_result(folder)
    except UserError:
        return None


def code_version(git: Mapping[str, Any] | None) -> str | None:
    """Return a text that identifies a state of the code within this process."""
    return f"{git.get('commit')} {hash(git.get('patch'))}" if git else None


def match_runs(jobs: Sequence[SweepJob], runs: Sequence[RunDirectory]) -> dict[str, RunDirectory]:
    """Return the run directory of each job that has one, by the job's key.

    They are matched by signature. Of several with the same one (copies, or repetitions by other
    code) the newest that is done is taken. Where several jobs share a signature, the overrides
    decide in which the jobs differ.
    """
    by_signature: dict[str, list[RunDirectory]] = {}
    for run in runs:
        by_signature.setdefault(run.signature, []).append(run)
    matched = {}
    for job in jobs:
        candidates = by_signature.get(job.signature, [])
        if job.shares_signature:
            candidates = [r for r in candidates if set(job.chosen) <= r.overrides]
        if candidates:
            matched[job.key] = max(
                candidates, key=lambda r: (r.is_done, r.result is not None, r.created)
            )
    return matched


def assign_folders(
    jobs: Sequence[SweepJob],
    matched: Mapping[str, RunDirectory],
    recorded: Mapping[str, str],
    used_names: Collection[str],
    directory: Path,
) -> dict[str, str]:
    """Return a folder's name for every job: its present one, or else a new readable one.

    Args:
        matched: run directories by the job's key.
        recorded: folder names in the database, by the job's key.
        used_names: names of folders that belong to a run.
    """
    used_names = set(used_names)
    folder_names = {}
    for job in jobs:
        if job.key in matched:
            folder_names[job.key] = matched[job.key].folder
            continue
        before = recorded.get(job.key)
        if before and before not in used_names and not _is_no_folder(directory / before):
            name = before  # it was killed before its meta.json was written
        else:
            name, number = slug(job), 1
            while name in used_names or _is_no_folder(directory / name):
                number += 1
                name = f"{slug(job)}_{number}"
        used_names.add(name)
        folder_names[job.key] = name
    return folder_names


def _is_no_folder(path: Path) -> bool:
    """Return whether the path is a file or a link, not a folder of the sweep."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def outcome_from_result(result: Mapping[str, Any] | None, plan: SweepPlan) -> Outcome:
    """Return the outcome in a `result.json`, with the metrics that the sweep needs.

    Args:
        result: its content; None if there is none.
    """
    if result is None:
        return Outcome("interrupted", "it was killed before it ended")
    metrics = result.get("metrics") or {}
    best = result.get("best") or {}
    if best and plan.is_monitored:
        value = as_number(best.get("value"))
    else:
        value = find_metric_value(result, plan.metric)
    columns = {k: v for k, v in numeric_values(metrics).items() if k.startswith(COLUMN_SPLITS)}
    return Outcome(
        status=str(result.get("status", "failed")),
        error=result.get("error"),
        best=None if value is None or math.isnan(value) else value,
        best_step=best.get("step"),
        secondary_values={
            name: find_metric_value(result, name) for name in plan.secondary_objectives
        },
        column_metrics=columns,
        step=result.get("step"),
        result_names=(*metrics, *(k for k in ("active_s",) if k in result)),
        seconds=as_number(result.get("active_s")),
    )


def find_ranking_metric(
    plan: SweepPlan, outcomes: Iterable[Outcome], known: str | None = None
) -> str | None:
    """Return the metric that ranks jobs: the plan's, or its namesake of the test split.

    The namesake takes its place while no job has the plan's metric: in evaluations of the test
    split, or of data without a validation split.

    Args:
        known: what ranks earlier ones.

    Returns:
        None if no job has either.
    """
    namesake = f"test/{plan.metric.partition('/')[2]}"
    for outcome in outcomes:
        if outcome.best is not None:
            return plan.metric
        if namesake in outcome.column_metrics:
            known = known or namesake
    return known


def find_metric_value(result: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a result, or another number of it, such as `active_s`."""
    metrics = result.get("metrics") or {}
    return as_number(metrics[name] if name in metrics else result.get(name))
