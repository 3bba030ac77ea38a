"""Deletes failed and abandoned runs; never a run that is in use or that another one needs."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from runner.errors import UserError
from runner.reporting.console.format import format_duration
from runner.reporting.report.records import RunRecord, checkpoint_steps, read_run
from runner.reporting.report.terminal import make_console, make_table
from runner.rundir.location import FILES_BEFORE_META
from runner.rundir.lock import FolderLock, is_locked
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import is_temporary
from runner.rundir.run_files import read_plain_yaml
from runner.rundir.sweep_folder import SWEEP_MARKS, is_sweep
from runner.rundir.walk import walk_folders

_DELETING = ".deleting-"  # prefix of a folder that is being deleted; the next `clean` continues
# settings that name the source of a run's initial weights or tables
_STARTED_FROM = re.compile(r"checkpoint\.(init_from|init_tables\..+\.from)")
_OWN_TRANSFORMS = "data/learnt.json"  # of a run that has read those of `dataset.learnt`
# `dataset.learnt` in a config.yaml
_LEARNT = re.compile(r"^  learnt: ['\"]?(/.*?)['\"]?$", re.MULTILINE)


@dataclass(frozen=True)
class RemovableRun:
    """A run that may be deleted."""

    folder: Path
    reason: str
    age_s: float
    num_bytes: int


@dataclass(frozen=True)
class CleanupPlan:
    """What would be deleted."""

    removable: tuple[RemovableRun, ...]
    kept: tuple[tuple[Path, str], ...]  # folders that must stay or cannot be read, with the reason
    num_runs: int


def plan_cleanup(
    folders: Sequence[Path], *, interrupted: bool = False, older_than_s: float | None = None
) -> CleanupPlan:
    """Find the runs below some folders that may be deleted.

    Sweeps are left out, as their runs belong together.

    Args:
        interrupted: include runs that could be resumed.
        older_than_s: only runs that are older, whatever their status; None: of any age.
    """
    kept: list[tuple[Path, str]] = []
    removable: list[RemovableRun] = []
    places = list(dict.fromkeys(p.resolve() for f in folders for p in _walk(f, kept)))
    runs = [(place, _read(place)) for place in places]
    records = [run for _, run in runs if isinstance(run, RunRecord)]
    needed = _find_needed_runs(records, by_old_starts=older_than_s is None)
    now = time.time()
    for place, run in runs:
        try:
            age_s = max(0.0, now - _last_write_time(place))
            why = _removal_reason(place, run, interrupted=interrupted)
        except OSError as error:
            kept.append((place, f"cannot be read: {error.strerror or error}"))
            continue
        if why is None and older_than_s is not None and isinstance(run, RunRecord):
            why = f"{run.status}, old" if run.status != "running" else None
        if why is None or (older_than_s is not None and age_s < older_than_s):
            continue
        if is_locked(place):
            kept.append((place, "in use"))
        elif place in needed:
            kept.append((place, f"{needed[place].name} builds on it"))
        else:
            removable.append(RemovableRun(place, why, age_s, folder_num_bytes(place)))
    return CleanupPlan(tuple(removable), tuple(kept), len(runs))


def _walk(folder: Path, unreadable: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield run directories, runs killed at their start, and folders that are half deleted."""
    for path, below, names in walk_folders(folder, unreadable):
        if "meta.json" in names or _is_beginning(names):
            yield path
        elif names & SWEEP_MARKS:
            below.clear()
        else:
            halves = [path / name for name in sorted(names) if name.startswith(_DELETING)]
            yield from (half for half in halves if half.is_dir() and not half.is_symlink())


def _is_beginning(names: frozenset[str]) -> bool:
    """Whether a run was killed in the folder with these names before it had a `meta.json`."""
    return ".lock" in names and all(is_temporary(name) for name in names - FILES_BEFORE_META)


def _read(folder: Path) -> RunRecord | str:
    """Return the record of a run, or why it cannot be read."""
    if folder.name.startswith(_DELETING):
        return "its deletion was cut short"
    if not os.path.exists(folder / "meta.json"):
        return "ended before it had begun"
    try:
        return read_run(folder, folder.name)
    except UserError:
        return "meta.json is damaged"


def _removal_reason(place: Path, run: RunRecord | str, *, interrupted: bool) -> str | None:
    if isinstance(run, str):
        return run if run != "meta.json is damaged" else None  # its checkpoints may still be good
    steps = checkpoint_steps(place)
    prospect = f"could be resumed at step {max(steps):,}" if steps else "no checkpoint"
    if run.status == "failed":
        return f"failed, {prospect}"
    if run.status in ("interrupted", "incomplete") and (interrupted or not steps):
        return f"{run.status}, {prospect}"
    return None


def _find_needed_runs(runs: Sequence[RunRecord], *, by_old_starts: bool) -> dict[Path, Path]:
    """Return run -> the run that needs it, for a warm start or an evaluation.

    Args:
        by_old_starts: whether also a completed run with a checkpoint of its own needs the source
            of its warm start or transforms, of which it has its own. Only `reproduce` reads those
            weights then; in a chain of a run a day none is free.
    """
    needed: dict[Path, Path] = {}
    for run in runs:
        identity = run.meta.get("identity") or {}
        starts = [path for key, path in identity.items() if _STARTED_FROM.fullmatch(key)]
        has_own = run.status == "completed" and bool(checkpoint_steps(run.folder))
        if learnt := _learnt_from(run.folder):
            starts.append(learnt)
            has_own = has_own and (run.folder / _OWN_TRANSFORMS).exists()
        paths = [
            (run.meta.get("source") or {}).get("path"),
            *(starts if by_old_starts or not has_own else ()),
        ]
        for text in paths:
            if text:
                path = Path(str(text)).resolve()
                if path.parent.name == "checkpoints":
                    above = path.parent.parent
                else:
                    above = path.parent if path.name == "data" else path
                if above != run.folder.resolve():
                    needed[above] = run.folder
    return needed


def _learnt_from(folder: Path) -> str | None:
    """Return `dataset.learnt` of a run, which is not part of its identity."""
    try:
        match = _LEARNT.search(read_plain_yaml(folder / "config.yaml"))
    except UserError:  # absent or damaged
        return None
    return match and match[1]


def _last_write_time(folder: Path) -> float:
    """Return when a file of the folder was last written, in seconds since 1970."""
    return max((e.stat(follow_symlinks=False).st_mtime for e in os.scandir(folder)), default=0.0)


def folder_num_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder. Links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # another process may change the folder meanwhile
                continue
    return total


def show_cleanup(plan: CleanupPlan) -> None:
    """Print what would be deleted, and what must stay."""
    out = make_console(is_asked=True)
    if plan.removable:
        rows = [
            (_relative(r.folder), r.reason, format_duration(r.age_s), f"{r.num_bytes / 1e6:,.1f}")
            for r in plan.removable
        ]
        out.print(make_table("", ["run", "why", "age", "MB"], rows, right=["age", "MB"]))
    for folder, why in plan.kept:
        out.print(Text(f"kept: {_relative(folder)}: {why}"), soft_wrap=True)
    size = sum(r.num_bytes for r in plan.removable) / 1e6
    out.print(f"{len(plan.removable)} of {plan.num_runs} runs can be deleted, {size:,.1f} MB")


def _relative(folder: Path) -> str:
    cwd = Path.cwd()
    return str(folder.relative_to(cwd)) if folder.is_relative_to(cwd) else str(folder)


def delete_runs(runs: Sequence[RemovableRun]) -> bool:
    """Delete runs: lock, rename and remove each, so that a kill never leaves half a run.

    Returns:
        Whether all could be deleted.
    """
    out = make_console()
    deleted = []
    for run in runs:
        try:
            lock = FolderLock(run.folder)
            try:
                doomed = run.folder.with_name(_DELETING + run.folder.name.removeprefix(_DELETING))
                os.rename(run.folder, doomed)
            finally:
                lock.release()
            shutil.rmtree(doomed)
        except (OSError, UserError) as error:
            out.print(Text(f"not deleted: {error}", style="red"), soft_wrap=True)
            continue
        deleted.append(run)
        _clean_up_outputs(run.folder)
    size = sum(r.num_bytes for r in deleted) / 1e6
    out.print(f"deleted {len(deleted)} of {len(runs)} runs, {size:,.1f} MB")
    return len(deleted) == len(runs)


def _clean_up_outputs(folder: Path) -> None:
    """Remove empty `outputs/NAME`, and point `latest` to the newest remaining run."""
    outputs = next((p for p in folder.parents if p.name == "outputs"), None)
    if outputs is None:
        return
    parent = folder.parent
    if parent != outputs and not any(parent.iterdir()):
        parent.rmdir()
    latest = outputs / "latest"
    if not latest.is_symlink() or latest.exists():
        return
    latest.unlink()
    runs = [p.parent for p in outputs.glob("*/*/meta.json") if p.parent.parent.name != "eval"]
    metas = {r: read_optional_json(r / "meta.json") for r in runs if not is_sweep(r.parent)}
    if metas:
        newest = max(metas, key=lambda r: str(metas[r].get("created") or ""))
        latest.symlink_to(newest.relative_to(outputs))
