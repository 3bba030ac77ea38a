"""Writes files that are on the disk when a call returns, and JSON that restores values exactly."""

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

# Hashing and writing release the GIL for a whole chunk, so that training seldom waits.
CHUNK_BYTES = 8 << 20
_FLOAT_TAG = "$float"


@dataclass(frozen=True)
class FileDigest:
    """The size and the hash of a file's content."""

    size: int  # bytes
    sha256: str


def write_file(path: Path, contents: Iterable[bytes | memoryview]) -> FileDigest:
    """Write a new file and sync it; the hash is computed while writing, without reading again.

    Raises:
        OSError: if it cannot be written, with its name.
    """
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for content in contents:
                view = memoryview(content)
                for start in range(0, len(view), CHUNK_BYTES):
                    chunk = view[start : start + CHUNK_BYTES]
                    digest.update(chunk)
                    size += len(chunk)
                    while chunk:  # a write may take only a part, for example if the disk is full
                        chunk = chunk[os.write(descriptor, chunk) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    return FileDigest(size, digest.hexdigest())


def digest_file(path: Path) -> FileDigest:
    """Compute size and sha256 of a regular file.

    Raises:
        OSError: if it cannot be read, or is a link, a pipe or a device.
    """
    # non-blocking, since opening a pipe would otherwise wait for ever
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        digest = hashlib.file_digest(file, "sha256")
    return FileDigest(status.st_size, digest.hexdigest())


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with its content. A link is removed and never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def dump_json(
    value: Any, where: str = "values", *, indent: int | None = None, sort_keys: bool = True
) -> bytes:
    """Write standard JSON, with NaN and infinities as tagged strings. Tuples become lists.

    The text is canonical if keys are sorted.

    Raises:
        TypeError: for values that JSON would lose or change (keys that are not strings, arrays,
            objects), with their place.
    """
    tagged = _tag_floats(value, where)
    text = json.dumps(tagged, allow_nan=False, indent=indent, sort_keys=sort_keys)
    return text.encode("ascii") + b"\n"


def parse_json(raw: bytes) -> Any:
    """Read what `dump_json` has written.

    Raises:
        ValueError: if it is not such JSON.
    """
    try:
        return json.loads(raw.decode("ascii"), object_hook=_untag_float)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _tag_floats(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT_TAG: repr(float(value))}
    if isinstance(value, list | tuple):
        return [_tag_floats(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is of type {type(value).__name__}, which JSON cannot represent")
    for key in value:
        if not isinstance(key, str) or key == _FLOAT_TAG:
            raise TypeError(f"{where} has the key {key!r}, which JSON cannot restore")
    return {k: _tag_floats(v, f"{where}[{k!r}]") for k, v in value.items()}


def _untag_float(mapping: dict[str, Any]) -> Any:
    return float(mapping[_FLOAT_TAG]) if mapping.keys() == {_FLOAT_TAG} else mapping
