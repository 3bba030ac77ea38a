"""The manifest: what a checkpoint consists of, and whether that is still what was written.

Its bytes are checked too: they must be the canonical spelling of their content, and the content
must match a sha256 of its own. `format` and this rule stay the same in every later format.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.checkpoint.files import FileDigest, digest_file, dump_json, parse_json

FORMAT = 1
MANIFEST_FILE = "manifest.json"
VALUES_FILE = "state.json"
TENSORS_SUFFIX = ".safetensors"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # so neither "..", nor a path


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; those that were there are as they were."""


class DamagedError(UserError):
    """A checkpoint is not what was written: an older one may do."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest holds."""

    step: int
    path: Path
    values: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    step: int
    files: Mapping[str, FileDigest]


def encode_manifest(manifest: Manifest) -> bytes:
    files = {name: {"size": s.size, "sha256": s.sha256} for name, s in manifest.files.items()}
    return _sealed({"format": FORMAT, "step": manifest.step, "files": files})


def read_manifest(folder: Path) -> Manifest:
    """Parse and check `manifest.json` alone.

    Raises: DamagedError; UserError for a format of another version, which no older one may replace.
    """
    path = folder / MANIFEST_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"{folder} has no {MANIFEST_FILE}: not a whole checkpoint") from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = parse_json(raw)
        told = content.pop("sha256")
        sealed = _sealed(content)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if sealed != raw or told != _digest(content):
        raise DamagedError(f"{path} is damaged: it does not match its own sha256")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has the format {content.get('format')!r}; this version reads {FORMAT}. "
            "Use the version that wrote it, or another folder"
        )
    try:
        files = {name: FileDigest(**entry) for name, entry in content["files"].items()}
        if type(content["step"]) is not int:
            raise TypeError("step is no whole number")
        return Manifest(content["step"], files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error!r}") from error


def check_names(folder: Path, manifest: Manifest) -> None:
    """Only plain names of files of the folder, and no tensors besides. Raises: DamagedError."""
    for name in manifest.files:
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST_FILE:
            raise DamagedError(f"{folder / MANIFEST_FILE} names {name!r}, no file of its folder")
    if VALUES_FILE not in manifest.files:
        raise DamagedError(f"{folder / MANIFEST_FILE} names no {VALUES_FILE}")
    # The reader of tensors takes every such file that it finds.
    extra = {e.name for e in folder.iterdir() if e.name.endswith(TENSORS_SUFFIX)} - set(
        manifest.files
    )
    if extra:
        raise DamagedError(f"{folder} holds {sorted(extra)[0]!r}, which its manifest does not name")


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raises: DamagedError, naming the file."""
    for name, told in manifest.files.items():
        try:
            size = os.lstat(folder / name).st_size
        except FileNotFoundError as error:
            raise DamagedError(f"{folder / name} is missing") from error
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {error}") from error
        if size != told.size:
            raise DamagedError(f"{folder / name} has {size} bytes instead of {told.size}")


def check_contents(folder: Path, manifest: Manifest) -> None:
    """Read every file once. Raises: DamagedError, naming the file."""
    for name, told in manifest.files.items():
        try:
            found = digest_file(folder / name)
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {error}") from error
        if found != told:
            raise DamagedError(
                f"{folder / name} is damaged: its sha256 is not the one it was saved with"
            )


def _sealed(content: Mapping[str, Any]) -> bytes:
    return dump_json({**content, "sha256": _digest(content)}, "manifest", indent=1)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(dict(content), "manifest")).hexdigest()
