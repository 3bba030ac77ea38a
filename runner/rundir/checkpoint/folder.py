"""The folder of checkpoints: finds, verifies, commits and removes them, and looks into them.

At every instant each step either exists completely under a name that readers know, or does not
exist. Only renames change that: `.tmp-...` becomes `step-N` for a new checkpoint, `step-N` becomes
`.tmp-...` for one that is removed, and for one that is replaced `step-N` first becomes
`.old-step-N`, which readers take for step N as long as there is no other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError, nearest_hint
from runner.rundir.checkpoint.files import parse_json, remove_path
from runner.rundir.checkpoint.manifest import (
    MANIFEST_FILE,
    TENSORS_SUFFIX,
    VALUES_FILE,
    Checkpoint,
    DamagedError,
    check_contents,
    check_names,
    check_sizes,
    read_manifest,
)
from runner.rundir.json_files import sync_path
from runner.rundir.regular_files import MAX_JSON_BYTES, open_regular, read_bytes

TEMPORARY_PREFIX = ".tmp-"
_STEP = re.compile(r"(\.old-)?step-(0|[1-9][0-9]*)")


def step_folders(folder: Path) -> dict[int, Path]:
    """Return the folder of every step, intact or not, ascending by step."""
    folders: dict[int, Path] = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        match = _STEP.fullmatch(entry.name)
        if match and match[1]:
            folders.setdefault(int(match[2]), entry)
        elif match:
            folders[int(match[2])] = entry
    return dict(sorted(folders.items()))


def saved_steps(folder: Path) -> list[int]:
    """Return the steps, ascending, whose manifest is intact and whose files have their size.

    It reads no tensors.
    """
    return [step for step, path in step_folders(folder).items() if _is_intact(path)]


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify size and sha256 of every file of a checkpoint, and read its values.

    Raises:
        DamagedError: if a file is damaged, with its name.
        UserError: if there is no such checkpoint, or it has the format of another version.
    """
    if not path.is_dir() and path.with_name(f".old-{path.name}").is_dir():
        path = path.with_name(f".old-{path.name}")
    if not path.is_dir():
        near = nearest_hint(path.name, [p.name for p in step_folders(path.parent).values()])
        raise UserError(f"there is no checkpoint at {path}{near}")
    manifest = read_manifest(path)
    match = _STEP.fullmatch(path.name)
    if match and int(match[2]) != manifest.step:
        raise DamagedError(f"{path} holds step {manifest.step}, not the step of its name")
    try:
        check_names(path, manifest)
        check_sizes(path, manifest)
        check_contents(path, manifest)
        values = parse_json((path / VALUES_FILE).read_bytes())
    except DamagedError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    return Checkpoint(manifest.step, path, values, manifest)


def find_latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Open the newest checkpoint that is intact. Changes nothing in the folder.

    A damaged checkpoint is skipped with a warning.

    Returns:
        None if there are no checkpoints.

    Raises:
        UserError: if there are checkpoints and none is intact, or if one has the format of another
            version, which an older one must not silently replace.
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
    """Give a written and synced folder its name, replacing a folder that has the name already.

    The old folder is set aside, and `remove_stale` removes it.

    Raises:
        OSError: if a rename fails; the old folder then has its name again.
    """
    old = final.with_name(f".old-{final.name}")
    replaces = os.path.lexists(final)
    if replaces:
        if os.path.lexists(old):
            remove_path(old)
        os.rename(final, old)
    try:
        os.rename(temporary, final)
    except OSError:
        if replaces:
            os.rename(old, final)
        raise
    sync_path(final.parent)


def remove_old(folder: Path, *, newest: int, keep: int, protect: Collection[int]) -> None:
    """Remove all checkpoints except `newest`, the `keep` newest intact ones and those in `protect`.

    A checkpoint that is not intact is removed if it is older than `newest`, which was just written.
    A newer one stays for inspection.
    """
    intact = saved_steps(folder)
    kept = {newest, *intact[-keep:], *protect}
    for step, path in step_folders(folder).items():
        if step not in kept and (step < newest or step in intact):
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint. If killed meanwhile, it is complete, or `remove_stale` removes it."""
    leaving = path.with_name(f"{TEMPORARY_PREFIX}gone-{path.name}")
    if os.path.lexists(leaving):
        remove_path(leaving)
    os.rename(path, leaving)
    remove_path(leaving)


def remove_stale(folder: Path) -> None:
    """Remove the leftovers of saves. No other process may write into this folder."""
    for entry in list(folder.iterdir()):
        if entry.name.startswith(TEMPORARY_PREFIX):
            remove_path(entry)
        elif entry.name.startswith(".old-step-"):
            final = folder / entry.name.removeprefix(".old-")
            if os.path.lexists(final):
                remove_path(entry)
            else:
                os.rename(entry, final)


def _is_intact(path: Path) -> bool:
    try:
        manifest = read_manifest(path)
        check_names(path, manifest)
        check_sizes(path, manifest)
    except (UserError, OSError):
        return False
    return True


@dataclass(frozen=True)
class CheckpointSummary:
    """The values of a checkpoint and the names of its tensors, without a check of its sha256."""

    path: Path
    values: Mapping[str, Any]
    tensor_names: frozenset[str]


def peek_checkpoint(path: Path, step: str = "best") -> CheckpointSummary | None:
    """Summarise a checkpoint.

    Args:
        path: a checkpoint's own folder, or a run directory.
        step: `best` or `last`, for a run directory.

    Returns:
        None if none can be read. The reason is reported when the tensors are read.
    """
    try:
        if (path / MANIFEST_FILE).exists():
            return _read_summary(path)
        steps = saved_steps(path / "checkpoints")
        if not steps:
            return None
        newest = _read_summary(path / "checkpoints" / f"step-{steps[-1]}")
        best = newest.values.get("best") if step == "best" else None
        if best is None or best["step"] == steps[-1]:
            return newest
        return _read_summary(path / "checkpoints" / f"step-{best['step']}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError):
        return None


def _read_summary(folder: Path) -> CheckpointSummary:
    names: set[str] = set()
    for file in sorted(folder.glob(f"*{TENSORS_SUFFIX}")):
        with open(open_regular(file), "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(os.fstat(opened.fileno()).st_size, MAX_JSON_BYTES):
                raise ValueError(f"{file}: not a safetensors file")
            names |= json.loads(opened.read(length)).keys() - {"__metadata__"}
    return CheckpointSummary(folder, parse_json(read_bytes(folder / VALUES_FILE)), frozenset(names))
