"""Finds the run that is meant by a folder. Imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path

from runner.errors import ConfigError, UserError
from runner.rundir.location import has_never_begun
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import read_meta
from runner.rundir.sweep_folder import find_best_job, is_sweep
from runner.rundir.walk import runs_below


def find_run(folder: str | Path) -> Path:
    """Return the absolute path of the training meant by a folder; print which, if several.

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
        newest = next((run for run in runs_below(folder) if _is_training(run)), None)
        if newest is not None:
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


def _is_training(run: Path) -> bool:
    """Whether a run is a training that has begun; a damaged one is skipped, and reported."""
    try:
        return read_meta(run).get("kind") == "train" and not has_never_begun(run)
    except UserError as error:
        print(f"{error}; it is passed over", file=sys.stderr, flush=True)
        return False
