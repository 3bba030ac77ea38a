"""Finds the runs in a list of folders: runs, sweeps, and folders of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError
from runner.reporting.report.records import RunRecord, read_run, read_unstarted_run
from runner.rundir.location import FILES_BEFORE_META
from runner.rundir.sweep_folder import SWEEP_MARKS, is_sweep, read_leaderboard
from runner.rundir.walk import walk_folders

ReadRun = Callable[[Path, str, Mapping[str, str]], RunRecord]


def read_any_run(folder: Path, label: str, row: Mapping[str, str]) -> RunRecord:
    """Return the record of a run, started or not."""
    read_one = read_run if (folder / "meta.json").exists() else read_unstarted_run
    return read_one(folder, label, row)


@dataclass(frozen=True)
class RunSelection:
    """The runs of some folders."""

    runs: tuple[RunRecord, ...]
    problems: tuple[str, ...]  # folders that could not be read, with the reason
    sweeps: tuple[Path, ...]


def find_runs(folders: Sequence[Path], read: ReadRun = read_any_run) -> RunSelection:
    """Return every run below the folders, each once.

    Args:
        folders: of runs, of sweeps, and of folders of them.
        read: returns the record of a folder, its label, and its row of the sweep's leaderboard.

    Raises:
        UserError: if there is none; the message says what each folder is.
    """
    runs: dict[Path, RunRecord] = {}
    problems: list[str] = []
    sweeps: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            what = "is a file, not a run directory" if folder.exists() else "no such run directory"
            problems.append(f"{folder}: {what}")
            continue
        has_run = False
        for path, row in _walk(folder, sweeps, problems):
            label = _label(path, folder, is_only_folder=len(folders) == 1)
            real_path, has_run = path.resolve(), True
            if real_path in runs:
                continue
            try:
                runs[real_path] = read(path, label, row)
            except UserError as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"{path}: cannot be read: {error.strerror or error}")
        if not has_run and not any(p.startswith(str(folder)) for p in problems):
            problems.append(_explain_no_runs(folder))
    if not runs:
        raise UserError("; ".join(problems) or "no run")
    return RunSelection(tuple(runs.values()), tuple(problems), tuple(sweeps))


def _walk(
    folder: Path, sweeps: list[Path], problems: list[str]
) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Yield run directories in and below a folder, each with its row of the leaderboard.

    Sweeps that are found are added to `sweeps`, and folders that cannot be read to `problems`.
    """
    unreadable: list[tuple[Path, str]] = []
    rows: dict[Path, dict[str, dict[str, str]]] = {}  # of the leaderboard of each sweep
    for path, below, names in walk_folders(folder, unreadable):
        row = rows.get(path.parent, {}).get(path.name, {})
        if "meta.json" in names:
            yield path, row
        elif path.parent in rows:  # a job that has not begun, or another folder
            below.clear()
            if names & FILES_BEFORE_META:
                yield path, row
        elif names & SWEEP_MARKS:
            sweeps.append(path)
            rows[path] = read_leaderboard(path)
    problems += [f"{path}: {why}" for path, why in unreadable]


def _label(path: Path, folder: Path, *, is_only_folder: bool) -> str:
    if path == folder:
        return path.name or str(path)
    inner = str(path.relative_to(folder))
    return inner if is_only_folder else f"{folder.name}/{inner}"


def _explain_no_runs(folder: Path) -> str:
    if (folder / "manifest.json").exists() or folder.parent.name == "checkpoints":
        return f"{folder}: is a checkpoint; its run is {folder.parent.parent}"
    if folder.name == "checkpoints":
        return f"{folder}: holds checkpoints; their run is {folder.parent}"
    if is_sweep(folder):
        if gone := sum(bool(row.get("step")) for row in read_leaderboard(folder).values()):
            return (
                f"{folder}: a sweep whose jobs' folders are gone; the metrics of {gone:,} are in "
                "its leaderboard.csv"
            )
        return f"{folder}: a sweep in which no job has begun"
    if (folder / "config.yaml").exists():
        return f"{folder}: a run that was ended before it had begun: it has no meta.json"
    names = sorted(p.name for p in folder.iterdir())[:4]
    holds = f"it holds {', '.join(names)}" if names else "it is empty"
    return f"{folder}: no run directory, and none below it: {holds}"
