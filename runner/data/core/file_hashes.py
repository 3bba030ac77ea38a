"""Hashes of the contents of files, remembered so that a file is read once and not by every run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from runner.machine.cache_folder import cache_root

FOLDER = "file_hashes"
CHUNK_BYTES = 1 << 22
LARGE_BYTES = 10**10  # a file that takes so long that one wants to know why
# A file that was written so lately may be written again without another time of its last change
SETTLED_S = 2.0


def hash_file(path: Path) -> str:
    """Return the 128-bit XXH3 hash of a file's content, in hexadecimal digits.

    A file whose place, size, number and time of the last change are those of before is not read.
    It detects another content; it is no protection against malice.

    Raises:
        OSError: if the file cannot be read.
    """
    place = os.path.realpath(path)
    known = cache_root() / FOLDER / hashlib.sha256(place.encode()).hexdigest()[:32]
    with open(place, "rb") as file:
        state = _state(file.fileno())
        remembered = _read(known)
        if remembered[:-1] == state:
            return str(remembered[-1])
        if state[0] >= LARGE_BYTES:
            size = f"{state[0] / 1e9:,.0f} GB"
            print(f"{path}: {size} are read once, to know them again", file=sys.stderr, flush=True)
        digest = _hash_content(file)
        if state == _state(file.fileno()) and abs(time.time() - state[1] / 1e9) > SETTLED_S:
            _remember(known, [*state, digest])
    return digest


def hash_file_anew(path: Path) -> str:
    """Return the hash that `hash_file` does, and remember nothing: of files that come without end.

    Raises:
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        return _hash_content(file)


def _hash_content(file: BinaryIO) -> str:
    hasher = xxhash.xxh3_128()
    while chunk := file.read(CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()


def _state(descriptor: int) -> list[int]:
    """Return size, time of the last change in nanoseconds, device and number of an open file."""
    status = os.fstat(descriptor)
    return [status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino]


def _read(known: Path) -> list[object]:
    """Return what is remembered of a file; an empty list if that is nothing, or damaged."""
    try:
        remembered = json.loads(known.read_bytes())
    except (OSError, ValueError):
        return []
    return remembered if isinstance(remembered, list) else []


def _remember(known: Path, entry: list[object]) -> None:
    """Write an entry; where the cache cannot be written, the next run reads the file again."""
    with suppress(OSError):
        known.parent.mkdir(parents=True, exist_ok=True)
        written = known.with_name(f"{known.name}.{os.getpid()}")
        written.write_text(json.dumps(entry))
        written.replace(known)
