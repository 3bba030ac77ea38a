"""Writes a folder under a temporary name and renames it, so that it is complete or absent."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import sync_path
from runner.rundir.lock import LOCK_FILE, FolderLock, is_locked

LOCKED_WITHIN_S = 3600.0  # after its creation a private folder is locked; clocks of shares differ


@contextmanager
def write_aside(out: Path, key: str = "--out") -> Iterator[Path]:
    """Yield a temporary folder next to `out`, which is renamed to `out` if the block succeeds.

    Folders that killed processes have left there are removed.

    Args:
        key: the flag or key that named it, for messages.

    Raises:
        UserError: if `out` cannot be written, or exists.
    """
    with private_folder_beside(out, key) as private:
        folder = private / out.name
        folder.mkdir()  # its mode follows the umask, unlike that of `private`
        yield folder
        for file in folder.rglob("*"):
            sync_path(file)
        sync_path(folder)
        if out.exists() or not _rename_folder(folder, out):  # which may replace an empty folder
            raise UserError(f"{key} {out}: exists by now; nothing was written. Name another")
        sync_path(out.parent)


@contextmanager
def private_folder_beside(out: Path, key: str = "--out") -> Iterator[Path]:
    """Yield a hidden folder next to `out`, which is removed when the block ends.

    Folders that killed processes have left there are removed.

    Args:
        key: the flag or key that named it, for messages.

    Raises:
        UserError: if nothing can be written there.
    """
    private: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{out.name}.tmp-"
        for stale in out.parent.glob(".*.tmp-*"):
            if _is_abandoned(stale, is_ours=stale.name.startswith(prefix)):
                shutil.rmtree(stale, ignore_errors=True)
        # absolute, since pyarrow takes what begins with `runs_10:00/` for the address of a store
        private = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent.absolute()))
        lock = FolderLock(private)
    except OSError as error:
        if private is not None:  # on a full disk; without a lock's text it would never be removed
            shutil.rmtree(private, ignore_errors=True)
        raise UserError(f"{key} {out}: cannot be written: {error.strerror or error}") from error
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)
        lock.release()


def _rename_folder(folder: Path, out: Path) -> bool:
    """Rename a folder; return False if another process has created the target meanwhile.

    Raises:
        OSError: for every other reason.
    """
    try:
        os.rename(folder, out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _is_abandoned(private: Path, *, is_ours: bool) -> bool:
    """Return whether the process of a private folder has ended, by the text of its lock.

    Args:
        private: a folder that may be of `private_folder_beside`.
        is_ours: whether its name is that of an earlier attempt at the same path; a folder for
            another path must hold nothing but the files of `write_aside`.
    """
    try:
        names, lock = set(os.listdir(private)), private / LOCK_FILE
        if lock.exists() and lock.stat().st_size > 0:
            name = private.name[1:].rpartition(".tmp-")[0]
            return (is_ours or names == {LOCK_FILE, name}) and not is_locked(private)
        # killed before it held its lock, which it takes at once: nothing was written yet
        is_old = time.time() - private.stat().st_mtime > LOCKED_WITHIN_S
        return is_ours and is_old and names <= {LOCK_FILE} and not is_locked(private)
    except OSError:
        return False
