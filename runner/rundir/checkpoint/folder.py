"""The folder of checkpoints: which are there, which can be believed, how one comes and goes.

At every instant each step is either wholly there under a name that readers look at, or not there
at all. Only renames change that: `.tmp-...` to `step-N` for a new one; `step-N` to `.tmp-...` for
one that goes; and for one that is replaced `step-N` to `.old-step-N` first, which readers take for
step N as long as there is no other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from runner.errors import UserError, nearest_hint
from runner.rundir.checkpoint.files import parse_json, remove_path
from runner.rundir.checkpoint.manifest import (
    VALUES_FILE,
    Checkpoint,
    DamagedError,
    check_contents,
    check_names,
    check_sizes,
    read_manifest,
)
from runner.rundir.json_files import sync_folder

TEMPORARY_PREFIX = ".tmp-"
_STEP = re.compile(r"(\.old-)?step-(0|[1-9][0-9]*)")


def step_folders(folder: Path) -> dict[int, Path]:
    """Every step that has a folder, whole or not, ascending."""
    found: dict[int, Path] = {}
    for entry in folder.iterdir() if folder.exists() else ():
        match = _STEP.fullmatch(entry.name)
        if match and match[1]:
            found.setdefault(int(match[2]), entry)
        elif match:
            found[int(match[2])] = entry
    return dict(sorted(found.items()))


def saved_steps(folder: Path) -> list[int]:
    """Steps with a whole manifest and files of the right size, ascending. Reads no tensors."""
    return [step for step, path in step_folders(folder).items() if _is_whole(path)]


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify size and sha256 of every file of one checkpoint, and read its values.

    Raises: DamagedError that names the file; UserError for a format of another version.
    """
    if not path.is_dir() and path.with_name(f".old-{path.name}").is_dir():
        path = path.with_name(f".old-{path.name}")
    if not path.is_dir():
        near = nearest_hint(path.name, [p.name for p in step_folders(path.parent).values()])
        raise UserError(f"no checkpoint at {path}{near}")
    manifest = read_manifest(path)
    named = _STEP.fullmatch(path.name)
    if named and int(named[2]) != manifest.step:
        raise DamagedError(f"{path} holds step {manifest.step}, not the step of its name")
    try:
        check_names(path, manifest)
        check_sizes(path, manifest)
        check_contents(path, manifest)
        values = parse_json((path / VALUES_FILE).read_bytes())
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{path} cannot be read: {error}") from error
    return Checkpoint(manifest.step, path, values)


def find_latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; None if there is none. Changes nothing in the folder.

    A damaged one is passed over with a warning. Raises: UserError if there are some and none is
    good, or if one has the format of another version (older ones must not silently stand for it).
    """
    folders = step_folders(folder)
    for step in reversed(folders):
        try:
            return open_checkpoint(folders[step])
        except DamagedError as error:
            warn(f"checkpoint of step {step} is passed over: {error}")
    if folders:
        steps = ", ".join(str(step) for step in folders)
        raise UserError(
            f"none of the checkpoints in {folder} is whole (steps {steps}). "
            "Delete that folder to start from the beginning"
        )
    return None


def commit_checkpoint(temporary: Path, final: Path) -> None:
    """Give a written and synced folder its name, in place of what may have it already.

    That is left aside for `sweep`.
    """
    aside = final.with_name(f".old-{final.name}")
    replaces = os.path.lexists(final)
    if replaces:
        if os.path.lexists(aside):
            remove_path(aside)
        os.rename(final, aside)
    try:
        os.rename(temporary, final)
    except OSError:
        if replaces:
            os.rename(aside, final)
        raise
    sync_folder(final.parent)


def remove_old(folder: Path, *, newest: int, keep: int, protect: Collection[int]) -> None:
    """Remove all but the `keep` newest whole ones, `protect` and `newest`, which was just written.

    One that is not whole goes when it is older; a newer one stays, to be looked at.
    """
    whole = saved_steps(folder)
    kept = {newest, *whole[-keep:], *protect}
    for step, path in step_folders(folder).items():
        if step not in kept and (step < newest or step in whole):
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint; killed in between, it is wholly there or is swept away later."""
    leaving = path.with_name(f"{TEMPORARY_PREFIX}gone-{path.name}")
    if os.path.lexists(leaving):
        remove_path(leaving)
    os.rename(path, leaving)
    remove_path(leaving)


def remove_stale(folder: Path) -> None:
    """Clear up what no reader needs. No other writer may be at work in this folder."""
    for entry in list(folder.iterdir()):
        if entry.name.startswith(TEMPORARY_PREFIX):
            remove_path(entry)
        elif entry.name.startswith(".old-step-"):
            final = folder / entry.name.removeprefix(".old-")
            if os.path.lexists(final):
                remove_path(entry)
            else:
                os.rename(entry, final)


def _is_whole(path: Path) -> bool:
    try:
        manifest = read_manifest(path)
        check_names(path, manifest)
        check_sizes(path, manifest)
    except (UserError, OSError):
        return False
    return True
