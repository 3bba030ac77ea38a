"""Processes that end when their parent or their terminal does.

The script `parent_death.py PARENT COMMAND...`, run with `python -I -S`, replaces itself by a job of
a sweep. The job then ends with the sweep, for whatever reason: when the parent dies, the kernel
sends it SIGTERM, so that it saves and exits. To ask for this in the sweep itself, between fork and
exec, would run Python code after a fork in a process that may have threads. Only the standard
library is imported here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signum: int) -> None:
    """Make the kernel send `signum` to this process when its parent ends (on Linux).

    If the process `parent` has ended already, this process exits with 143.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request
        sys.exit(143)


def become_job(parent: int) -> None:
    """Make this process a job of the sweep `parent`, or exit with 143 if that has ended already."""
    die_with_parent(parent, signal.SIGTERM)
    # A sweep under nohup or in a script's background ignores SIGINT; its jobs must not.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def stop_with_terminal() -> None:
    """Stop like at SIGTERM when the terminal is closed (SIGHUP), unless `nohup` ignores that.

    Only the main thread of a process can set this; in another thread this does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def child_command(*command: str) -> list[str]:
    """Return the command that makes a new process a job of this one and runs `command` in it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    become_job(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
