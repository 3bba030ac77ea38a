"""Becomes a job's process: `python -I -S parent_death.py PARENT COMMAND...`. Imports only Python.

The job then ends with the sweep, however the sweep ends: the kernel sends it SIGTERM when its
parent dies, so it saves and exits. (Asked for between fork and exec in the sweep itself, this would
need code to run after a fork in a process that may have threads.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signum: int) -> None:
    """Has the kernel send this process a signal when its parent ends, if that has not happened yet.

    Exits with 143 if it has.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked to be told
        sys.exit(143)


def exec_job(parent: int, command: list[str]) -> None:
    """Replaces this process by the command. Exits with 143 if the sweep is gone already."""
    die_with_parent(parent, signal.SIGTERM)
    # A sweep under nohup or in a script's background ignores SIGINT; its jobs must not.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(command[0], command)


if __name__ == "__main__":
    exec_job(int(sys.argv[1]), sys.argv[2:])
