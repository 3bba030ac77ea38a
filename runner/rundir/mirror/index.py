"""`run.json`: the index of a mirror."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner.errors import UserError, nearest_hint
from runner.object_store import StoreError, check_bucket, open_store, store_errors
from runner.rundir.checkpoint.files import FileDigest, dump_json, parse_json
from runner.rundir.lock import LOCK_FILE
from runner.rundir.regular_files import MAX_JSON_BYTES, RUN_FILES

FORMAT = 1
INDEX_FILE = "run.json"
OBJECTS = "objects"
# Mirrored files: all that a run needs to continue, and those that people read
MIRRORED_FILES = (*(name for name in RUN_FILES if name != LOCK_FILE), "report.html")
_NAMES = "|".join(map(re.escape, MIRRORED_FILES))
# lengths of names that a file system accepts
_FILE = re.compile(rf"{_NAMES}|(data|checkpoints/step-(0|[1-9][0-9]{{0,17}}))/[^./][^/]*")
_MAX_NAME_BYTES = 255
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Index:
    """The files of a run directory at one instant."""

    run_id: str | None
    step: int  # of the newest checkpoint; -1 if there is none
    files: Mapping[str, FileDigest]

    def encode(self) -> bytes:
        """Write the bytes of `run.json`."""
        files = {name: asdict(digest) for name, digest in self.files.items()}
        content = {"format": FORMAT, "run_id": self.run_id, "step": self.step, "files": files}
        return dump_json(content, INDEX_FILE, indent=1)


def object_path(root: str, digest: FileDigest) -> str:
    """Return where a store keeps content with this digest."""
    return f"{root}/{OBJECTS}/{digest.sha256}"


def read_index(url: str) -> Index | None:
    """Read the index of a mirror; None if there is none.

    Raises:
        StoreError: if the store refuses it.
        UserError: for another object with this name.
    """
    files, root = open_store(url)
    with store_errors(url):
        try:
            with files.open_input_file(f"{root}/{INDEX_FILE}") as file:
                raw = file.read(MAX_JSON_BYTES)
        except FileNotFoundError:
            return None
    try:
        return _parse(parse_json(raw))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{url}/{INDEX_FILE}: not of a mirrored run: {error}") from error


def _parse(content: Any) -> Index:
    """Check and return the content of `run.json`, which may come from an unknown source.

    Raises:
        ValueError: if it names a file that no run directory has, or is of another version.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}; this version reads {FORMAT}")
    files = {name: FileDigest(**entry) for name, entry in content["files"].items()}
    for name, digest in files.items():
        is_plain = name.isprintable() and "\\" not in name and _FILE.fullmatch(name)
        if not is_plain or len(posixpath.basename(name).encode()) > _MAX_NAME_BYTES:
            raise ValueError(f"{name[:80]!r} is no file of a run directory")
        if type(digest.size) is not int or digest.size < 0 or not _SHA256.fullmatch(digest.sha256):
            raise ValueError(f"{name!r} has no digest")
    if not files:
        raise ValueError("it names no files")
    if type(content["step"]) is not int:
        raise ValueError("its step is no whole number")
    return Index(content["run_id"], content["step"], files)


def require_index(url: str) -> Index:
    """Read what a mirror holds.

    Raises:
        StoreError: if there is no mirrored run; the message names the nearest one.
    """
    if (index := read_index(url)) is not None:
        return index
    from pyarrow import fs

    check_bucket(url)
    files, root = open_store(url)
    parent = posixpath.dirname(root)
    with store_errors(url):
        siblings = files.get_file_info(fs.FileSelector(parent, allow_not_found=True))
    near = nearest_hint(posixpath.basename(root), [info.base_name for info in siblings])
    raise StoreError(f"{url}: no run is mirrored there: it has no {INDEX_FILE}{near}")
