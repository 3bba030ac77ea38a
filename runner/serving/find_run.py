"""Finds the run that a folder stands for. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from runner.config.compose import require_trained_run
from runner.errors import UserError
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import read_meta

MAX_DEPTH = 4  # folders between the given one and a run's


def find_run(folder: str | Path) -> Path:
    """Return the run directory: the folder itself, or the training below it that began last.

    `outputs/latest` is a link to the training that began last of all below `outputs`. The URL of a
    mirror names its run, which is fetched.

    Raises:
        UserError: if there is no run.
    """
    folder = local_run(folder)
    if folder.is_dir() and not (folder / "meta.json").exists():
        patterns = ("*/" * depth + "meta.json" for depth in range(1, MAX_DEPTH + 1))
        found = [p for pattern in patterns for p in folder.glob(pattern)]
        runs = [p.parent for p in found if read_meta(p.parent).get("kind") == "train"]
        if runs:
            return max(runs, key=lambda run: (run / "meta.json").stat().st_mtime).absolute()
    if not folder.exists() and folder.name == "latest":
        raise UserError(
            f"{folder}: no such run directory: nothing was trained in {folder.parent}; "
            "`python -m runner` trains"
        )
    return require_trained_run(folder)
