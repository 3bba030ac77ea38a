"""Hashes of the contents of files, cached so that a file is read once and not by every run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import xxhash

from runner.machine.cache_folder import cache_root

FOLDER = "file_hashes"
LARGE_BYTES = 10**10  # of a file that takes so long that a message explains the wait
# A file that was written so recently may be written again with the same modification time
SETTLED_S = 2.0


def hash_file(path: Path) -> str:
    """Return the 128-bit XXH3 hash of a file's content, in hexadecimal digits.

    A file is not read if its path, size, inode and modification time are as at the last call.
    This detects changed content; it is no protection against malice.

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
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        if state == _state(file.fileno()) and abs(time.time() - state[1] / 1e9) > SETTLED_S:
            _remember(known, [*state, digest])
    return digest


def hash_file_anew(path: Path) -> str:
    """Return the same hash as `hash_file` without caching, for files of an endless sequence.

    Raises:
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _state(descriptor: int) -> list[int]:
    """Return size, modification time in nanoseconds, device and inode of an open file."""
    status = os.fstat(descriptor)
    return [status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino]


def _read(known: Path) -> list[object]:
    """Return the cached entry of a file; an empty list if it is missing or damaged."""
    try:
        remembered = json.loads(known.read_bytes())
    except (OSError, ValueError):
        return []
    return remembered if isinstance(remembered, list) else []


def _remember(known: Path, entry: list[object]) -> None:
    """Write an entry; if the cache is not writable, the next run reads the file again."""
    with suppress(OSError):
        known.parent.mkdir(parents=True, exist_ok=True)
        written = known.with_name(f"{known.name}.{os.getpid()}")
        written.write_text(json.dumps(entry))
        written.replace(known)
