"""The lock of a run directory, which ends with its process and names the process that has it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.regular_files import open_regular, read_bytes

LOCK_FILE = ".lock"
_NUM_LOOKS, _LOOK_S = 10, 0.01  # short locks of other processes that a start may meet in sequence


class LockedError(UserError):
    """Another process has the lock of a folder."""


class FolderLock:
    """An exclusive lock on a folder, held until `release` or the end of the process.

    The system drops it when the process dies, however it dies, so there is nothing to clean up.
    Forked children (reader processes) close it, so that one that outlives the run cannot keep the
    folder locked.
    """

    def __init__(self, folder: Path) -> None:
        """Lock a folder.

        Raises:
            LockedError: if another process has the lock, with that process.
            OSError: if the folder cannot be written.
        """
        self.path = folder / LOCK_FILE
        self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        try:
            _take_lock(self._fd)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise LockedError(
                    f"{folder}: another run is writing here: {describe_holder(folder)}; wait for "
                    "its end, or choose another place with hydra.run.dir=DIR"
                ) from None
            raise
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(holder).encode(), 0)
        except OSError:  # on a full disk: this process may continue, and try again
            self._close()
            raise
        os.register_at_fork(after_in_child=self._close)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)  # while locked: later it could be another's text
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _take_lock(descriptor: int) -> None:
    """Lock a file. `is_locked` of other processes holds it for an instant, so try again.

    Raises:
        OSError: if another process keeps the lock.
    """
    for _ in range(_NUM_LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOOK_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Return whether a live process writes into a run directory. Changes nothing."""
    try:
        fd = open_regular(folder / LOCK_FILE)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def describe_holder(folder: Path) -> str:
    """Describe the holder of a lock as `process 123 on host, since ...`."""
    try:
        holder: dict[str, Any] = json.loads(read_bytes(folder / LOCK_FILE))
        return f"process {holder['pid']} on {holder['host']}, since {holder['start']}"
    except (OSError, ValueError, KeyError):
        return "which process is not known"
