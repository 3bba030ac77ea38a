"""Which runs may go, and their going: a run in use, or that another builds on, never does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from runner.errors import UserError
from runner.reporting.console.format import format_duration
from runner.reporting.report.find import is_sweep
from runner.reporting.report.records import RunRecord, checkpoint_steps, read_run
from runner.reporting.report.terminal import make_console
from runner.rundir.lock import FolderLock, is_locked
from runner.rundir.readers import read_optional_json

_DELETING = ".deleting-"  # a folder on its way out; the next `clean` goes on with it
_MAX_DEPTH = 4
_TRACES = {".lock", "config.yaml", "log.txt", ".config.yaml.tmp", ".meta.json.tmp"}


@dataclass(frozen=True)
class RemovableRun:
    """A run that may go."""

    folder: Path
    reason: str
    age_s: float
    num_bytes: int


@dataclass(frozen=True)
class CleanupPlan:
    """kept: runs that would go, and why they do not."""

    removable: tuple[RemovableRun, ...]
    kept: tuple[tuple[Path, str], ...]
    num_runs: int


def plan_cleanup(
    folders: Sequence[Path], *, interrupted: bool = False, older_than_s: float | None = None
) -> CleanupPlan:
    """Looks below the folders. Sweeps are left out: their own runs belong together."""
    places = list(dict.fromkeys(p.resolve() for f in folders for p in _walk(f, 0)))
    runs = [(place, _read(place)) for place in places]
    needed = _find_needed_runs([run for _, run in runs if isinstance(run, RunRecord)])
    found, kept = [], []
    now = time.time()
    for place, run in runs:
        age_s = max(0.0, now - _last_write_time(place))
        why = _removal_reason(place, run, interrupted=interrupted)
        if why is None and older_than_s is not None and isinstance(run, RunRecord):
            why = f"{run.status}, old" if run.status != "running" else None
        if why is None or (older_than_s is not None and age_s < older_than_s):
            continue
        if is_locked(place):
            kept.append((place, "in use"))
        elif place in needed:
            kept.append((place, f"{needed[place].name} builds on it"))
        else:
            found.append(RemovableRun(place, why, age_s, folder_num_bytes(place)))
    return CleanupPlan(tuple(found), tuple(kept), len(runs))


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Run directories, beginnings of some, and folders whose deletion was cut short."""
    if (folder / "meta.json").exists() or _is_beginning(folder):
        yield folder
        return
    if is_sweep(folder) or depth > _MAX_DEPTH:
        return
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if not entry.is_dir(follow_symlinks=False):
            continue
        if entry.name.startswith(_DELETING):
            yield Path(entry.path)
        elif not entry.name.startswith("."):
            yield from _walk(Path(entry.path), depth + 1)


def _is_beginning(folder: Path) -> bool:
    """Of a run that was killed before it had a `meta.json`: nothing but traces, and a lock."""
    names = {entry.name for entry in os.scandir(folder)}
    return ".lock" in names and names <= _TRACES


def _read(folder: Path) -> RunRecord | str:
    """A record, or why there is none."""
    if folder.name.startswith(_DELETING):
        return "its deletion was cut short"
    if not (folder / "meta.json").exists():
        return "ended before it had begun"
    try:
        return read_run(folder, folder.name)
    except UserError:
        return "meta.json is damaged"


def _removal_reason(place: Path, run: RunRecord | str, *, interrupted: bool) -> str | None:
    if isinstance(run, str):
        return run if run != "meta.json is damaged" else None  # its checkpoints may still be good
    steps = checkpoint_steps(place)
    goes_on = f"could be resumed at step {max(steps):,}" if steps else "no checkpoint"
    if run.status == "failed":
        return f"failed, {goes_on}"
    if run.status in ("interrupted", "incomplete") and (interrupted or not steps):
        return f"{run.status}, {goes_on}"
    return None


def _find_needed_runs(runs: Sequence[RunRecord]) -> dict[Path, Path]:
    """Runs that others start from: weights of a warm start, the source of an evaluation."""
    found: dict[Path, Path] = {}
    for run in runs:
        paths = [
            (run.meta.get("source") or {}).get("path"),
            (run.meta.get("identity") or {}).get("checkpoint.init_from"),
        ]
        for text in paths:
            if text:
                path = Path(str(text)).resolve()
                above = path.parent.parent if path.parent.name == "checkpoints" else path
                if above != run.folder.resolve():
                    found[above] = run.folder
    return found


def _last_write_time(folder: Path) -> float:
    """When it was last written into."""
    return max((e.stat(follow_symlinks=False).st_mtime for e in os.scandir(folder)), default=0.0)


def folder_num_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # a run beside us may be writing
                continue
    return total


def show_cleanup(found: CleanupPlan) -> None:
    out = make_console()
    if found.removable:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold")
        for name in ("run", "why", "age", "MB"):
            right = name in ("age", "MB")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for one in found.removable:
            megabytes = f"{one.num_bytes / 1e6:,.1f}"
            cells = (_relative(one.folder), one.reason, format_duration(one.age_s), megabytes)
            table.add_row(*(Text(cell) for cell in cells))
        out.print(table)
    for folder, why in found.kept:
        out.print(Text(f"kept: {_relative(folder)}: {why}"), soft_wrap=True)
    size = sum(c.num_bytes for c in found.removable) / 1e6
    out.print(f"{len(found.removable)} of {found.num_runs} runs, {size:,.1f} MB")


def _relative(folder: Path) -> str:
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def delete_runs(candidates: Sequence[RemovableRun]) -> bool:
    """Takes each lock, renames, deletes: what is cut short is never half a run.

    Returns: whether all went.
    """
    out = make_console()
    gone = []
    for one in candidates:
        try:
            lock = FolderLock(one.folder)
            try:
                doomed = one.folder.with_name(_DELETING + one.folder.name.removeprefix(_DELETING))
                os.rename(one.folder, doomed)
            finally:
                lock.release()
            shutil.rmtree(doomed)
        except (OSError, UserError) as error:
            out.print(Text(f"not deleted: {error}", style="red"), soft_wrap=True)
            continue
        gone.append(one)
        _clean_up_outputs(one.folder)
    size = sum(c.num_bytes for c in gone) / 1e6
    out.print(f"deleted {len(gone)} of {len(candidates)} runs, {size:,.1f} MB")
    return len(gone) == len(candidates)


def _clean_up_outputs(folder: Path) -> None:
    """An `outputs/NAME` that is empty now goes; `latest` points at the newest run that is left."""
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
    trained = [r for r in runs if not is_sweep(r.parent)]
    if trained:
        newest = max(trained, key=_creation_time)
        latest.symlink_to(newest.relative_to(outputs))


def _creation_time(folder: Path) -> str:
    return str(read_optional_json(folder / "meta.json").get("created") or "")
