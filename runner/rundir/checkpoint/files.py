"""Files that are on the disk when a call returns, and JSON that gives back what it was given."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Hashing and writing let go of the interpreter for a whole piece, so training seldom waits for it.
CHUNK_BYTES = 8 << 20
FLOAT_TAG = "$float"


@dataclass(frozen=True)
class FileDigest:
    size: int  # bytes
    sha256: str


def write_file(path: Path, contents: Iterable[bytes | memoryview]) -> FileDigest:
    """Write a new file and sync it; hashes on the way, so that nothing is read again.

    Raises: OSError that names the file.
    """
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for content in contents:
                view = memoryview(content)
                for start in range(0, len(view), CHUNK_BYTES):
                    piece = view[start : start + CHUNK_BYTES]
                    digest.update(piece)
                    size += len(piece)
                    while piece:  # a write may take only a part, most of all when the disk fills
                        piece = piece[os.write(descriptor, piece) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    return FileDigest(size, digest.hexdigest())


def digest_file(path: Path) -> FileDigest:
    """Size and sha256 of a regular file. Raises: OSError, for a link, a pipe or a device too."""
    # non-blocking: opening a planted pipe would otherwise wait for ever
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
    return FileDigest(status.st_size, digest.hexdigest())


def remove_path(path: Path) -> None:
    """Remove a folder with all that is in it, or a file. A link is removed, never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def dump_json(value: Any, where: str = "values", *, indent: int | None = None) -> bytes:
    """Standard JSON in one canonical spelling; NaN and infinities survive as tagged strings.

    Raises: TypeError for what JSON would lose or change (keys that are no strings, arrays,
    objects), naming the place. Tuples become lists.
    """
    plain = _plain(value, where)
    text = json.dumps(plain, allow_nan=False, indent=indent, sort_keys=True)
    return text.encode("ascii") + b"\n"


def parse_json(raw: bytes) -> Any:
    """The inverse of `dump_json`. Raises: ValueError."""
    try:
        return json.loads(raw.decode("ascii"), object_hook=_untagged)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT_TAG: repr(float(value))}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is of type {type(value).__name__}, which JSON cannot hold")
    for key in value:
        if not isinstance(key, str) or key == FLOAT_TAG:
            raise TypeError(f"{where} has the key {key!r}, which JSON cannot give back")
    return {k: _plain(v, f"{where}[{k!r}]") for k, v in value.items()}


def _untagged(mapping: dict[str, Any]) -> Any:
    return float(mapping[FLOAT_TAG]) if mapping.keys() == {FLOAT_TAG} else mapping
