"""`python -m runner` as a sweep whose jobs are forks of it: 0.3 s instead of 3 s each.

The sweep is a process of its own, forked from one that has imported everything, and each job is a
process of its own as well: all may be killed. Only new interpreters and their imports are saved.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.cli.flags import extract_allow, parse_flags
from runner.cli.multirun import multirun
from runner.config.targets import allowed_packages
from runner.distributed.parent_death import die_with_parent
from runner.errors import UserError
from runner.sweep.local_process import JOB_LOG_FILE, job_command, job_environment
from tests.conftest import ROOT, Finished, Process, Zygote
from tests.zygote import become_runner

ENTRY = "tests.sweep.forked:main"


class Forked:
    """A job's process, which ends with the sweep and locks its log, like that of a real job."""

    def __init__(self, words: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        log, parent = folder / JOB_LOG_FILE, os.getpid()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            held = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            die_with_parent(parent, signal.SIGTERM)
            signal.set_wakeup_fd(-1)
            request = {"args": list(words), "cwd": os.getcwd(), "env": env, "output": str(log)}
            become_runner(request)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                os.close(self._pidfd)
                self._pidfd = -1
        return self.code

    def fileno(self) -> int:
        return self._pidfd

    def send_signal(self, number: int) -> None:
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forks(plan: Any, flags: Sequence[str], name: str) -> Any:
    env = job_environment(plan, name)

    def start(job: Any, folder: Path, slot: int) -> Forked:
        return Forked(job_command(job, folder, flags, None)[3:], folder, env)

    return start


def main(words: Sequence[str]) -> int:
    words, allow = extract_allow(words)
    try:
        return multirun(parse_flags(words), allowed_packages(allow), allow, forks)
    except UserError as error:
        print(f"error: {error}")
        return 2


def begin(zygote: Zygote, *words: str) -> Process:
    return zygote.start(*words, entry=ENTRY, cwd=ROOT)


def sweep(zygote: Zygote, *words: str) -> Finished:
    return begin(zygote, *words).finish()


def main_of_other_code(words: Sequence[str]) -> int:
    """Run `main` as if the code had changed since the last sweep."""
    from runner.sweep import sweep_state

    sweep_state.git_state = lambda project: {"commit": "other", "patch": ""}  # type: ignore[assignment]
    return main(words)
