"""Finds the runs that a list of folders stands for: runs, sweeps, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError
from runner.reporting.report.records import RunRecord, read_run, read_unstarted_run
from runner.rundir.sweep_folder import is_sweep, read_leaderboard

_MAX_DEPTH = 5  # folders below the one that is given
_TRACES = ("config.yaml", "job.log", ".lock")  # files of a run that has no meta.json yet


ReadRun = Callable[[Path, str, Mapping[str, str]], RunRecord]


def read_any_run(folder: Path, label: str, row: Mapping[str, str]) -> RunRecord:
    """Return the record of a run, started or not."""
    read = read_run if (folder / "meta.json").exists() else read_unstarted_run
    return read(folder, label, row)


@dataclass(frozen=True)
class RunSelection:
    """The runs of some folders."""

    runs: tuple[RunRecord, ...]
    problems: tuple[str, ...]  # what could not be read, and why
    sweeps: tuple[Path, ...]


def find_runs(folders: Sequence[Path], read: ReadRun = read_any_run) -> RunSelection:
    """Return every run below the folders, each once.

    Args:
        folders: of runs, of sweeps, and of folders of them.
        read: returns the record of a folder, its label, and its row of the sweep's leaderboard.

    Raises:
        UserError: if there is none, saying what each folder is instead.
    """
    runs: dict[Path, RunRecord] = {}
    problems: list[str] = []
    sweeps: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            what = "is a file, not a run directory" if folder.exists() else "no such run directory"
            problems.append(f"{folder}: {what}")
            continue
        before = len(runs)
        for path, row in _walk(folder, sweeps, {}, 0):
            label = _label(path, folder, alone=len(folders) == 1)
            real = path.resolve()
            if real in runs:
                continue
            try:
                runs[real] = read(path, label, row)
            except UserError as error:
                problems.append(str(error))
        if len(runs) == before and not any(p.startswith(str(folder)) for p in problems):
            problems.append(_explain_no_runs(folder))
    if not runs:
        raise UserError("; ".join(problems) or "no run")
    return RunSelection(tuple(runs.values()), tuple(problems), tuple(sweeps))


def _walk(
    folder: Path, sweeps: list[Path], rows: Mapping[str, Mapping[str, str]], depth: int
) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Yield run directories in and below a folder, each with its row of the leaderboard.

    Args:
        folder: where to look.
        sweeps: sweeps that are found are added.
        rows: of the leaderboard of the sweep that the folder belongs to.
        depth: of the folder below the one that was given.
    """
    if (folder / "meta.json").exists():
        yield folder, rows.get(folder.name, {})
        return
    inner_rows: Mapping[str, Mapping[str, str]] = {}
    if in_sweep := is_sweep(folder):
        sweeps.append(folder)
        inner_rows = read_leaderboard(folder)
    if depth >= _MAX_DEPTH:
        return
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if in_sweep and not (path / "meta.json").exists():
            if any((path / trace).exists() for trace in _TRACES):
                yield path, inner_rows.get(path.name, {})
            continue
        yield from _walk(path, sweeps, inner_rows, depth + 1)


def _label(path: Path, given: Path, *, alone: bool) -> str:
    if path == given:
        return path.name or str(path)
    inner = str(path.relative_to(given))
    return inner if alone else f"{given.name}/{inner}"


def _explain_no_runs(folder: Path) -> str:
    if (folder / "manifest.json").exists() or folder.parent.name == "checkpoints":
        return f"{folder}: is a checkpoint; its run is {folder.parent.parent}"
    if folder.name == "checkpoints":
        return f"{folder}: holds checkpoints; their run is {folder.parent}"
    if is_sweep(folder):
        return f"{folder}: a sweep in which no job has begun"
    if (folder / "config.yaml").exists():
        return f"{folder}: a run that was ended before it had begun: it has no meta.json"
    names = sorted(p.name for p in folder.iterdir())[:4]
    holds = f"it holds {', '.join(names)}" if names else "it is empty"
    return f"{folder}: no run directory, and none below it: {holds}"
