"""Opens files of a run directory from an unknown source: regular files only, never links.

A link could lead outside, and opening a pipe would wait for ever.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from runner.errors import UserError

RUN_FILES = (
    ".lock",
    "config.yaml",
    "meta.json",
    "result.json",
    "metrics.jsonl",
    "perf.jsonl",
    "log.txt",
    "data.json",
    "calibration.json",
    "hardest.json",
    "warm_start.json",
)
RUN_FOLDERS = ("checkpoints", "data", "tensorboard", "wandb", "follow")
MAX_JSON_BYTES = 1 << 26
MAX_LOG_BYTES = 1 << 32
ABANDONED_AFTER_S = 3600.0  # without a write to a temporary file; clocks of shares differ
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return its descriptor. Does not wait for a pipe.

    Raises:
        OSError: if it cannot be opened, or is a link, a directory, a pipe or a device.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError:
        check_kind(path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        check_kind(path)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def _kind_of(path: Path) -> str | None:
    """Return the kind of file at a path; None if there is none."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def check_kind(path: Path) -> None:
    """Check that a path is a regular file, or free for one.

    Raises:
        OSError: if it is a link, a directory, a pipe or a device.
    """
    kind = _kind_of(path)
    if kind not in (None, "a file"):
        raise OSError(errno.EINVAL, f"is {kind}, not a regular file", str(path))


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return a state that differs once a file is replaced or changed; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file whole.

    Raises:
        OSError: if it cannot be read, is no regular file, or has more than `max_bytes`.
    """
    with open(open_regular(path), "rb") as file:
        is_larger = os.fstat(file.fileno()).st_size > max_bytes
        content = b"" if is_larger else file.read()  # given a number, it takes so much memory
    if is_larger or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes:,} bytes", str(path))
    return content


def open_for_append(path: Path) -> IO[bytes]:
    """Open a log, which is a regular file or not there yet, to write at its end.

    Raises:
        OSError: if it cannot be opened, or is a link, a directory, a pipe or a device.
    """
    return open(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def check_run_files(
    folder: Path, names: Iterable[str] = RUN_FILES, folders: Iterable[str] = RUN_FOLDERS
) -> None:
    """Check that existing files are regular, and that folders are no links.

    Raises:
        UserError: naming the first one that is not.
    """
    for name in names:
        try:
            check_kind(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name}: {error.strerror}; nothing was changed") from None
    for name in folders:
        kind = _kind_of(folder / name)
        if kind not in (None, "a directory"):
            raise UserError(f"{folder / name}: is {kind}, not a folder; nothing was changed")
    if "data" in folders and (folder / "data").is_dir():
        check_run_files(folder / "data", os.listdir(folder / "data"), ())


@contextmanager
def replacing(path: Path) -> Iterator[TextIOWrapper]:
    """Open a new file that replaces `path` when the block ends.

    Its name is random, so that no link can be prepared there. If the block fails, it is removed;
    after a kill a later write of `path` does that.
    """
    temporary = _new_temporary(path)
    descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def unshare(path: Path) -> None:
    """Copy a file that has several hard links, so that this name has a separate copy.

    Otherwise changes under this name would appear under the others.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_nlink == 1:
            return
        temporary = _new_temporary(path)
        with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
            shutil.copyfileobj(file, copy)
    os.replace(temporary, path)


def _new_temporary(path: Path) -> Path:
    """Return a new name beside `path`, and remove files that killed writes of `path` have left."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with suppress(OSError):  # another write may remove them too
        for name in os.listdir(path.parent):  # of many thousand jobs in a sweep
            is_alike = len(name) == len(fresh.name) and name.startswith(f".{path.name}.")
            if is_alike and is_temporary(name):
                stale = path.with_name(name)
                if time.time() - stale.lstat().st_mtime > ABANDONED_AFTER_S:
                    stale.unlink()
    return fresh


def is_temporary(name: str) -> bool:
    """Return whether a file was left by a write that was killed (`replacing`)."""
    return name.startswith(".") and name.endswith(".tmp")
