"""Chooses a checkpoint of a run: the best, the last, or one by its step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.errors import ConfigError, UserError
from runner.rundir.checkpoint import Checkpoint, open_checkpoint, saved_steps
from runner.rundir.checkpoint.folder import peek_checkpoint, step_folders
from runner.rundir.checkpoint.manifest import DamagedError
from runner.rundir.identity import check_belongs

LARGE_BYTES = 500_000_000  # of a checkpoint whose reading takes so long that a message explains it


def describe_large(path: Path) -> str | None:
    """Return a message about the time that reading a checkpoint takes; None for a small one.

    Args:
        path: a run directory, or a checkpoint's own folder.
    """
    is_own = (path / "manifest.json").exists()
    folders = [path] if is_own else list(step_folders(path / "checkpoints").values())
    try:
        size = sum(file.stat().st_size for file in folders[-1].iterdir()) if folders else 0
    except OSError:  # what is wrong is told where it is read, if a training has not just removed it
        return None
    if size < LARGE_BYTES:
        return None
    return f"reading the checkpoint of {path}: {size / 1e9:,.1f} GB are checked and loaded ..."


def find_checkpoint(
    path: Path, step: int | str = "best", *, warn: Callable[[str], None] = warnings.warn
) -> Checkpoint:
    """Open the chosen checkpoint of a run directory.

    Args:
        path: a run directory, or a checkpoint's own folder, which is opened itself.
        step: `best`, `last`, or the number of a step.
        warn: called with a warning if a newer checkpoint is skipped, since it is not whole.

    Raises:
        ConfigError: if there is no such checkpoint, with those that exist.
        UserError: if the one in a run directory was written by another run.
    """
    if (path / "manifest.json").exists():
        return open_checkpoint(path)
    folder = path / "checkpoints"
    steps = saved_steps(folder)
    requested = step
    if not steps:
        raise ConfigError(_missing(path, requested, step, steps))
    for number, newer in step_folders(folder).items():
        if number > steps[-1]:
            try:
                open_checkpoint(newer)
            except UserError as error:
                warn(f"checkpoint of step {number} is passed over: {error}")
    if step == "last":
        step = steps[-1]
    if step == "best":
        newest = _open(path, "last", steps[-1], steps)
        best = newest.values["best"]
        step = best["step"] if best else steps[-1]
        if step == steps[-1]:
            return newest  # to check its files again would take as long
    if step not in steps:
        raise ConfigError(_missing(path, requested, step, steps))
    return _open(path, requested, step, steps)


def _open(path: Path, requested: int | str, step: int | str, steps: Sequence[int]) -> Checkpoint:
    """Open one of the steps of a run.

    Raises:
        DamagedError: if it is damaged; the message lists the others.
        UserError: as `open_checkpoint`, and if another run has written it.
    """
    try:
        saved = open_checkpoint(path / "checkpoints" / f"step-{step}")
    except DamagedError as error:
        whole = ", ".join(str(number) for number in steps if number != step)
        if not whole:
            raise
        raise DamagedError(f"{_chosen(requested, step)}: {error}; whole are {whole}") from error
    return check_belongs(saved, path)


def why_not_found(path: Path, step: int | str) -> str | None:
    """Return why `find_checkpoint` would fail in a run directory, or None; None for other folders.

    No tensor is read, so that the checkpoint may still be damaged.
    """
    if not (path / "meta.json").exists():
        return None
    steps = saved_steps(path / "checkpoints")
    requested = step
    if steps and step == "best":
        newest = peek_checkpoint(path, "last")
        step = ((newest.values.get("best") if newest else None) or {}).get("step", steps[-1])
    if step in steps or (steps and step == "last"):
        return None
    return _missing(path, requested, step, steps)


def _missing(path: Path, requested: int | str, step: int | str, steps: Sequence[int]) -> str:
    folder = path / "checkpoints"
    if not steps:
        return f"{folder}: holds no whole checkpoint; give a run directory that has one"
    chosen = _chosen(requested, step)
    whole = ", ".join(map(str, steps))
    damaged = step_folders(folder).get(step) if isinstance(step, int) else None
    if damaged is not None:
        try:
            open_checkpoint(damaged)
        except UserError as error:
            return f"{chosen}: {error}; whole are {whole}"
    return f"{chosen}: there is no {folder / f'step-{step}'}; whole are {whole}"


def _chosen(requested: int | str, step: int | str) -> str:
    return f"checkpoint.step={requested}" + (f" (step {step})" if requested != step else "")
