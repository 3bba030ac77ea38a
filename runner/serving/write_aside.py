"""A folder that is written beside its place and appears there whole, or not at all."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import sync_path
from runner.rundir.lock import LOCK_FILE, FolderLock, is_locked


@contextmanager
def write_aside(out: Path, key: str = "--out") -> Iterator[Path]:
    """Give a temporary folder beside `out`, which becomes `out` if the block succeeds.

    What a killed process left there of an earlier attempt is removed.

    Args:
        out: the new folder.
        key: what named it, for messages.

    Raises:
        UserError: if `out` cannot be written, or exists.
    """
    with private_folder_beside(out, key) as private:
        folder = private / out.name
        folder.mkdir()  # its mode is by the umask, and that of `private` is not
        yield folder
        for file in folder.rglob("*"):
            sync_path(file)
        sync_path(folder)
        if out.exists() or not _rename_folder(folder, out):  # which may replace an empty folder
            raise UserError(f"{key} {out}: exists by now; nothing was written. Name another")
        sync_path(out.parent)


@contextmanager
def private_folder_beside(out: Path, key: str = "--out") -> Iterator[Path]:
    """Give a hidden folder beside `out`, which is removed when the block ends.

    What a killed process left there of an earlier attempt is removed.

    Args:
        out: what is to be written.
        key: what named it, for messages.

    Raises:
        UserError: if nothing can be written there.
    """
    private: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{out.name}.tmp-"
        for stale in out.parent.glob(f"{glob.escape(prefix)}*"):
            if _is_abandoned(stale):
                shutil.rmtree(stale, ignore_errors=True)
        private = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
        lock = FolderLock(private)
    except OSError as error:
        if private is not None:  # on a full disk; without a lock's text nobody would ever remove it
            shutil.rmtree(private, ignore_errors=True)
        raise UserError(f"{key} {out}: cannot be written: {error.strerror or error}") from error
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)
        lock.release()


def _rename_folder(folder: Path, out: Path) -> bool:
    """Rename a folder; return False if another process has put something there meanwhile.

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


def _is_abandoned(private: Path) -> bool:
    """Return whether its process has ended. The text of a lock is written once it is held."""
    try:
        return (private / LOCK_FILE).stat().st_size > 0 and not is_locked(private)
    except OSError:
        return False
