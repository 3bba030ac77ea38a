"""Finds the run that a folder stands for. Imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path

from runner.errors import ConfigError, UserError
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import read_meta
from runner.rundir.sweep_folder import find_best_job, is_sweep

MAX_DEPTH = 4  # folders between the given one and a run's


def find_run(folder: str | Path) -> Path:
    """Return the absolute path of the training that a folder stands for; print which if several.

    It is the folder itself, the best job of a sweep, or the training below the folder that began
    last. `outputs/latest` is a link to the training that began last of all below `outputs`. The
    URL of a mirror names its run, which is fetched.

    Raises:
        ConfigError: for the directory of an evaluation; the message names the training.
        UserError: if there is no run, or no job of the sweep has a result.
    """
    folder = local_run(folder)
    if is_sweep(folder):
        folder, choice = find_best_job(folder)
        print(choice, file=sys.stderr, flush=True)
    elif folder.is_dir() and not (folder / "meta.json").exists():
        patterns = ("*/" * depth + "meta.json" for depth in range(1, MAX_DEPTH + 1))
        found = [p for pattern in patterns for p in folder.glob(pattern)]
        runs = [p.parent for p in found if read_meta(p.parent).get("kind") == "train"]
        if runs:
            newest = max(runs, key=lambda run: (run / "meta.json").stat().st_mtime)
            print(f"{folder}: its newest training is taken: {newest}", file=sys.stderr, flush=True)
            folder = newest
    if not folder.exists() and folder.name == "latest":
        raise UserError(
            f"{folder}: no such run directory: nothing was trained in {folder.parent}; "
            "`python -m runner` trains"
        )
    meta = read_meta(folder)
    if meta.get("kind") == "eval":
        training = (meta.get("source") or {}).get("path")
        raise ConfigError(f"run={folder}: is itself an evaluation of {training}; name that run")
    return folder.absolute()
