"""What is there already: run directories of a sweep, by what their `meta.json` says they are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.json_files import read_json
from runner.sweep.database import JobRecord
from runner.sweep.plan import SweepJob, SweepPlan, job_overrides, slug


@dataclass(frozen=True)
class Outcome:
    """What came of a job, as its `result.json` says and, where it says nothing, its process.

    status: completed, pruned, interrupted, failed or waiting; best: by the metric that jobs are
    ranked by; others: further objectives; seconds: over all its tries.
    """

    status: str
    error: str | None = None
    best: float | None = None
    best_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the test split
    step: int | None = None
    seconds: float | None = None
    secondary_values: Mapping[str, float | None] = field(default_factory=dict)
    result_names: tuple[str, ...] = ()  # of all that its result holds

    def has_metric(self, name: str) -> bool:
        return name in self.result_names

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"

    @property
    def is_done(self) -> bool:
        return self.status in DONE_STATUSES


DONE_STATUSES = ("completed", "pruned")
WAITING = Outcome("waiting")
UNREADABLE_SIGNATURE = ""  # the signature of a folder whose meta.json is damaged: no job's


@dataclass(frozen=True)
class RunDirectory:
    """A run directory in the sweep's folder."""

    folder: str  # its name there
    signature: str
    overrides: frozenset[str]
    code_version: str | None  # what the run was made by: commit and patch
    result: Mapping[str, Any] | None
    created: float = 0.0  # when, in seconds since 1970

    @property
    def is_done(self) -> bool:
        return self.result is not None and self.result.get("status") in DONE_STATUSES


def scan_runs(directory: Path, warn: Callable[[str], None]) -> list[RunDirectory]:
    """Every run directory below the sweep's folder. What cannot be read is told and left alone."""
    found = []
    if not directory.is_dir():
        return []
    for entry in os.scandir(directory):
        if not entry.is_dir():
            continue
        try:
            one = read_run_directory(Path(entry.path))
        except UserError as error:
            warn(f"{error}; its job is run in another folder")
            one = RunDirectory(entry.name, UNREADABLE_SIGNATURE, frozenset(), None, None)
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda f: f.folder)


def read_run_directory(folder: Path) -> RunDirectory | None:
    """A run directory's identity and result; None for one that has not come so far.

    Raises: UserError if `meta.json` is damaged.
    """
    if not (folder / "meta.json").exists():
        return None
    meta = read_json(folder / "meta.json")
    if not isinstance(meta, dict) or not isinstance(meta.get("signature"), str):
        raise UserError(f"{folder / 'meta.json'}: holds no signature")
    return RunDirectory(
        folder=folder.name,
        signature=meta["signature"],
        overrides=frozenset(job_overrides(meta.get("overrides") or ())),
        code_version=code_version(meta.get("git")),
        result=read_result(folder),
        created=(folder / "meta.json").stat().st_mtime,
    )


def code_version(git: Mapping[str, Any] | None) -> str | None:
    """Tells one state of the code from another, within this process."""
    return f"{git.get('commit')} {hash(git.get('patch'))}" if git else None


def read_result(folder: Path) -> Mapping[str, Any] | None:
    """`result.json`, or None if there is none or it cannot be read: then the job is not done."""
    try:
        result = read_json(folder / "result.json")
    except UserError:
        return None
    return result if isinstance(result, dict) else None


def match_runs(jobs: Sequence[SweepJob], runs: Sequence[RunDirectory]) -> dict[str, RunDirectory]:
    """Which job each run directory belongs to, by signature: job's key -> run directory.

    Of several with one signature (copies, or run again by other code) the newest that is done is
    taken; where several jobs share a signature, the overrides say whose it is.
    """
    by_signature: dict[str, list[RunDirectory]] = {}
    for one in runs:
        by_signature.setdefault(one.signature, []).append(one)
    claimed = {}
    for job in jobs:
        mine = by_signature.get(job.signature, [])
        if job.shares_signature:
            mine = [f for f in mine if set(job.overrides) <= f.overrides]
        if mine:
            claimed[job.key] = max(mine, key=lambda f: (f.is_done, f.result is not None, f.created))
    return claimed


def assign_folders(
    jobs: Sequence[SweepJob],
    matched: Mapping[str, RunDirectory],
    records: Mapping[str, JobRecord],
    taken: Collection[str],
    directory: Path,
) -> dict[str, str]:
    """A folder's name for every job: the one it has, else a readable one that is nobody's.

    Args: taken: names of folders that are somebody's.
    """
    taken = set(taken)
    result = {}
    for job in jobs:
        if job.key in matched:
            result[job.key] = matched[job.key].folder
            continue
        if job.key in records and records[job.key].folder not in taken:
            name = records[job.key].folder  # it was killed before its meta.json was written
        else:
            name, number = slug(job), 1
            while name in taken or _is_file(directory / name):
                number += 1
                name = f"{slug(job)}_{number}"
        taken.add(name)
        result[job.key] = name
    return result


def _is_file(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def outcome_from_result(
    result: Mapping[str, Any] | None, plan: SweepPlan, *, seconds: float | None = None
) -> Outcome:
    """What a `result.json` says of what the sweep looks at."""
    if result is None:
        return Outcome("interrupted", "it was killed before it ended", seconds=seconds)
    metrics = {k: parse_metric_value(v) for k, v in (result.get("metrics") or {}).items()}
    best = result.get("best") or {}
    if best and plan.is_monitored:
        value = parse_metric_value(best.get("value"))
    else:
        value = find_metric_value(result, plan.metric)
    return Outcome(
        status=str(result.get("status", "failed")),
        error=result.get("error"),
        best=None if value is None or math.isnan(value) else value,
        best_step=best.get("step"),
        secondary_values={
            name: find_metric_value(result, name) for name in plan.secondary_objectives
        },
        metrics={k: v for k, v in metrics.items() if k.startswith("test/") and v is not None},
        step=result.get("step"),
        result_names=(*metrics, *(k for k in ("active_s",) if k in result)),
        seconds=result.get("active_s") if seconds is None else seconds,
    )


def find_metric_value(result: Mapping[str, Any], name: str) -> float | None:
    """A metric of a result, or another number of it, such as `active_s`."""
    metrics = result.get("metrics") or {}
    return parse_metric_value(metrics[name] if name in metrics else result.get(name))


def parse_metric_value(value: Any) -> float | None:
    """A metric's value; NaN and infinity stand in JSON as text."""
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
