"""The manifest: lists the files of a checkpoint, and checks that they have not changed.

The bytes of the manifest are checked, too: they must be the canonical JSON of its content, and the
content must match its own sha256. `format` and this rule will stay in every later format.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.checkpoint.files import FileDigest, digest_file, dump_json, parse_json
from runner.rundir.regular_files import read_bytes

FORMAT = 1
MANIFEST_FILE = "manifest.json"
VALUES_FILE = "state.json"
TENSORS_SUFFIX = ".safetensors"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # neither ".." nor a path


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the earlier ones are unchanged."""


class DamagedError(UserError):
    """A checkpoint has changed since it was written; an older one may be intact."""


@dataclass(frozen=True)
class CheckpointLink:
    """Identifies one checkpoint: its step, and the sha256 of its manifest's content."""

    step: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The step of a checkpoint, the digests of its files, and where it belongs."""

    step: int
    files: Mapping[str, FileDigest]
    run_id: str | None = None  # of the run that wrote it; earlier versions recorded none
    before: CheckpointLink | None = None  # the previous one that the run saved or restored


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match its manifest."""

    step: int
    path: Path
    values: dict[str, Any]
    manifest: Manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as the bytes of `manifest.json`."""
    return _encode(_content(manifest))


def link_to(manifest: Manifest) -> CheckpointLink:
    """Return the link to this checkpoint for the manifest of the next one."""
    return CheckpointLink(manifest.step, _digest(_content(manifest)))


def _content(manifest: Manifest) -> dict[str, Any]:
    files = {name: asdict(digest) for name, digest in manifest.files.items()}
    content: dict[str, Any] = {"format": FORMAT, "step": manifest.step, "files": files}
    if manifest.run_id is not None:
        content["run"] = manifest.run_id
    if manifest.before is not None:
        content["before"] = asdict(manifest.before)
    return content


def read_manifest(folder: Path) -> Manifest:
    """Parse and check `manifest.json` alone.

    Raises:
        DamagedError: if it is missing or damaged.
        UserError: if it has the format of another version; no older checkpoint may replace it.
    """
    path = folder / MANIFEST_FILE
    try:
        raw = read_bytes(path)
    except FileNotFoundError as error:
        raise DamagedError(f"{folder} has no {MANIFEST_FILE}: not a whole checkpoint") from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = parse_json(raw)
        sha256 = content.pop("sha256")
        canonical = _encode(content)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if canonical != raw or sha256 != _digest(content):
        raise DamagedError(f"{path} is damaged: it does not match its own sha256")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has the format {content.get('format')!r}; this version reads {FORMAT}. "
            "Use the version that wrote it, or another folder"
        )
    try:
        files = {name: FileDigest(**entry) for name, entry in content["files"].items()}
        step = content["step"]
        before = CheckpointLink(**content["before"]) if "before" in content else None
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error!r}") from error
    if type(step) is not int:
        raise DamagedError(f"{path} is damaged: its step is not a whole number")
    return Manifest(step, files, content.get("run"), before)


def check_names(folder: Path, manifest: Manifest) -> None:
    """Check that the manifest names files of its folder only, and all files of tensors in it.

    Raises:
        DamagedError: if it does not.
    """
    for name in manifest.files:
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST_FILE:
            raise DamagedError(
                f"{folder / MANIFEST_FILE} names {name!r}, which is not a file of its folder"
            )
    if VALUES_FILE not in manifest.files:
        raise DamagedError(f"{folder / MANIFEST_FILE} names no {VALUES_FILE}")
    # torch's reader reads every file of tensors in the folder
    tensor_files = {e.name for e in folder.iterdir() if e.name.endswith(TENSORS_SUFFIX)}
    extra = tensor_files - set(manifest.files)
    if extra:
        raise DamagedError(f"{folder} holds {sorted(extra)[0]!r}, which its manifest does not name")


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check the size of every file.

    Raises:
        DamagedError: if one is missing or has another size, with its name.
    """
    for name, digest in manifest.files.items():
        try:
            size = os.lstat(folder / name).st_size
        except FileNotFoundError as error:
            raise DamagedError(f"{folder / name} is missing") from error
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {error}") from error
        if size != digest.size:
            raise DamagedError(f"{folder / name} has {size} bytes instead of {digest.size}")


def check_contents(folder: Path, manifest: Manifest) -> None:
    """Check the sha256 of every file, which reads each of them once.

    Raises:
        DamagedError: if one cannot be read or has changed, with its name.
    """
    for name, digest in manifest.files.items():
        try:
            current = digest_file(folder / name)
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {error}") from error
        if current != digest:
            raise DamagedError(
                f"{folder / name} is damaged: its sha256 is not the one it was saved with"
            )


def _encode(content: Mapping[str, Any]) -> bytes:
    return dump_json({**content, "sha256": _digest(content)}, "manifest", indent=1)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(dict(content), "manifest")).hexdigest()
