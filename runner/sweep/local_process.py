"""A job as a process of its own: its command, its share of the machine, its log, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from runner.distributed import parent_death
from runner.machine import usable_cores
from runner.sweep.plan import SweepJob, SweepPlan

JOB_LOG_FILE = "job.log"
_EXEC_SCRIPT = parent_death.__file__


class JobHandle(Protocol):
    """A job that was started."""

    pid: int

    def poll(self) -> int | None:
        """None while it runs, then its exit code; -9 if it was killed by signal 9."""

    def fileno(self) -> int:
        """Becomes readable when it ends; -1 if nothing does."""

    def send_signal(self, signum: int) -> None:
        """A signal to the job, which passes it on to processes of its own as it sees fit."""

    def kill(self) -> None:
        """SIGKILL to the job and all its processes."""


class JobStarter(Protocol):
    """Begins a job: this machine's processes, or something else."""

    def __call__(self, job: SweepJob, folder: Path, slot: int) -> JobHandle: ...


class LocalProcess:
    """A job's process, leader of a session of its own, so that the terminal's Ctrl-C misses it.

    Its output goes to `job.log`, which stays locked as long as any of the job's processes has it
    open: so the next sweep here knows whether something of a killed one is still alive.
    """

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str]) -> None:
        with log.open("ab") as output:
            with contextlib.suppress(OSError):  # held by a process that a try before left behind
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _EXEC_SCRIPT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        self.pid = self._process.pid
        # Without pidfd (not Linux) the sweep looks at its jobs at short intervals instead.
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1

    def poll(self) -> int | None:
        if self._process.returncode is None:
            # Not reaped yet, so that the group's number is still the job's own: what it left
            # behind (ranks, reader processes of a job that was killed) goes with it.
            done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if done is None:
                return None
            self.kill()
            self._process.wait()
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        return self._process.returncode

    def fileno(self) -> int:
        return self._pidfd

    def send_signal(self, signum: int) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def local_launcher(plan: SweepPlan, flags: Sequence[str], name: str) -> JobStarter:
    """Jobs as processes of this machine, each with its share of the cores and GPUs.

    Args:
        plan: the sweep.
        flags: words of the command line that are no overrides.
        name: the sweep's, for trackers.
    """
    slots = plan.launcher.slots
    shares = split_devices(visible_devices(), slots)

    def start(job: SweepJob, folder: Path, slot: int) -> JobHandle:
        env = dict(os.environ, **job_environment(plan, name))
        threads = threads_per_rank(job, plan)
        if shares is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(shares[slot])
        return LocalProcess(job_command(job, folder, flags, threads), folder / JOB_LOG_FILE, env)

    return start


def job_environment(plan: SweepPlan, name: str) -> dict[str, str]:
    """Environment by which a job knows that it is one of a sweep."""
    return {"RUNNER_SWEEP": name, **({"RUNNER_PRUNING": "1"} if plan.has_pruner else {})}


def threads_per_rank(job: SweepJob, plan: SweepPlan) -> int | None:
    """What each rank of a job gets of the cores that its slot has; None: what it says itself.

    Alone, a job takes what it would take outside a sweep.
    """
    if plan.launcher.slots == 1 or plan.has_num_threads:
        return None
    return max(1, num_cores() // plan.launcher.slots // job.num_ranks)


def job_command(
    job: SweepJob, folder: Path, flags: Sequence[str], num_threads: int | None
) -> list[str]:
    """The job as a person could start it too."""
    extra = [] if num_threads is None else [f"trainer.num_threads={num_threads}"]
    place = f"hydra.run.dir={quote_hydra_value(str(folder))}"
    # A YAML that a job chooses may set Hydra's mode: then it would be a sweep of its own.
    own = [*job.overrides, *extra, place, "hydra.mode=RUN"]
    return [sys.executable, "-m", "runner", *flags, *own]


def quote_hydra_value(text: str) -> str:
    """A path as a value in Hydra's grammar."""
    if re.fullmatch(r"[A-Za-z0-9_/.@%+-]*/[A-Za-z0-9_/.@%+-]*", text):
        return text
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def num_cores() -> int:
    return usable_cores() if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_devices() -> list[str]:
    """Names of the CUDA devices that this process may use, found without torch."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [d.strip() for d in given.split(",")]
        return [d for d in names if d and not d.startswith("-")]
    numbers = [re.fullmatch(r"nvidia(\d+)", p.name) for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((m.group(1) for m in numbers if m), key=int)


def split_devices(devices: Sequence[str], slots: int) -> list[list[str]] | None:
    """Devices of each slot: several each, or one for several slots; None: nothing to share out."""
    if slots == 1 or len(devices) < 2:
        return None
    each = len(devices) // slots
    if each == 0:
        return [[devices[slot % len(devices)]] for slot in range(slots)]
    return [list(devices[slot * each : (slot + 1) * each]) for slot in range(slots)]


def process_start_ticks(pid: int) -> int | None:
    """When a process began (in the kernel's ticks since boot), to tell it from a later one that
    got its number; None if there is no such process or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_log_open(log: Path) -> bool:
    """Whether a process still has this job's log open: something of a killed sweep is alive."""
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def count_oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def wait_for_orphans(
    orphans: Sequence[tuple[Path, int | None, int | None]], *, grace_s: float
) -> int:
    """Waits until the jobs of a killed sweep have saved; kills those that do not within the time.

    Args: orphans: log, process id, when that began. Returns: how many had to be killed.
    """
    deadline = time.monotonic() + grace_s
    alive = [o for o in orphans if is_log_open(o[0])]
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [o for o in alive if is_log_open(o[0])]
    for log, pid, began in alive:
        if pid is not None and began is not None and process_start_ticks(pid) == began:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        until = time.monotonic() + 2
        while is_log_open(log) and time.monotonic() < until:
            time.sleep(0.02)
    return len(alive)
