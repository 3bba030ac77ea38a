"""A job as a process of this machine: its command, its share of the cores, its log, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.config.hydra_text import quote_hydra_value
from runner.distributed import parent_death
from runner.machine.cores import usable_cores
from runner.rundir.regular_files import open_for_append, open_regular
from runner.sweep.forked_jobs import ForkedJobs, no_fork
from runner.sweep.plan import SweepJob, SweepPlan

JOB_LOG_FILE = "job.log"


class LocalProcess:
    """A job's process, which leads its own session, so that Ctrl-C in the terminal misses it.

    Its output goes to `job.log`, which stays locked while any process of the job has it open. So
    the next sweep in this folder knows whether a process of a killed one is still alive.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: dict[str, str],
        fork: Callable[[Sequence[str], int], int | None] = no_fork,
    ) -> None:
        """Start the process.

        Args:
            fork: see `ForkServer.start`; where it returns None a new process is made.
        """
        self._process: subprocess.Popen[bytes] | None = None
        with open_for_append(log) as output:
            with contextlib.suppress(OSError):  # a process of an earlier try still has it
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            pid = fork(command, output.fileno())
            if pid is None:
                self._process = subprocess.Popen(
                    parent_death.child_command(*command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    start_new_session=True,
                )
                pid = self._process.pid
        self.pid = pid
        self._code: int | None = None
        # Where there is no pidfd (not Linux) the sweep polls its jobs at short intervals instead.
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1

    def poll(self) -> int | None:
        """Return the exit code, -N after a kill by signal N; None while the job runs."""
        if self._code is None:
            # The process is not reaped yet, so that the group's number is still the job's. What it
            # left behind (ranks and readers of a job that was killed) is killed with it.
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                return None
            self.kill()
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if self._process is not None:
                self._process.returncode = self._code
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        return self._code

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the job ends; -1 if there is none."""
        return self._pidfd

    def send_signal(self, signum: int) -> None:
        """Send a signal to the job's first process, which passes it on to others as it sees fit."""
        if self._code is None:  # it is not reaped, so that no other process has its number
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the job and all its processes."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


# starts a job in a folder, in the slot of this number
JobStarter = Callable[[SweepJob, Path, int], LocalProcess]


def local_launcher(plan: SweepPlan, flags: Sequence[str], name: str) -> JobStarter:
    """Return the launcher of jobs as local processes, each with its share of the cores and GPUs."""
    slots = plan.launcher.slots
    devices = visible_devices()
    devices_by_slot = split_devices(devices, slots)

    forks = ForkedJobs(plan.launcher.fork_server and not devices)

    def start(job: SweepJob, folder: Path, slot: int) -> LocalProcess:
        env = dict(os.environ, **job_environment(plan, name))
        threads = threads_per_rank(job, plan)
        if devices_by_slot is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices_by_slot[slot])
        command = job_command(job, folder, flags, threads)
        fork = forks.starter(env, threads or job.num_threads or usable_cores(), job.num_ranks)
        return LocalProcess(command, folder / JOB_LOG_FILE, env, fork)

    return start


def job_environment(plan: SweepPlan, name: str) -> dict[str, str]:
    """Return the environment variables that tell a job that it is part of a sweep."""
    return {"RUNNER_SWEEP": name, **({"RUNNER_PRUNING": "1"} if plan.has_pruner else {})}


def threads_per_rank(job: SweepJob, plan: SweepPlan) -> int | None:
    """Return the threads for each rank of a job, its share of its slot's cores.

    None: the job decides, since the user gave a number, or it runs alone and takes as many as
    outside a sweep.
    """
    if plan.launcher.slots == 1 or plan.has_num_threads:
        return None
    return max(1, usable_cores() // plan.launcher.slots // job.num_ranks)


def job_command(
    job: SweepJob, folder: Path, flags: Sequence[str], num_threads: int | None
) -> list[str]:
    """Return the command of a job, as a person could give it too."""
    threads = [] if num_threads is None else [f"trainer.num_threads={num_threads}"]
    run_dir = f"hydra.run.dir={quote_hydra_value(str(folder))}"
    # A YAML that a job chooses may set Hydra's mode, which would make the job a sweep.
    overrides = [*job.overrides, *threads, run_dir, "hydra.mode=RUN"]
    return [sys.executable, "-m", "runner", *flags, *overrides]


def visible_devices() -> list[str]:
    """Return the names of the CUDA devices that this process may use, without torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [d.strip() for d in chosen.split(",")]
        return [d for d in names if d and not d.startswith("-")]
    numbers = [re.fullmatch(r"nvidia(\d+)", p.name) for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((m.group(1) for m in numbers if m), key=int)


def split_devices(devices: Sequence[str], slots: int) -> list[list[str]] | None:
    """Return the devices of each slot, several each or shared; None: there is nothing to split."""
    if slots == 1 or len(devices) < 2:
        return None
    per_slot = len(devices) // slots
    if per_slot == 0:
        return [[devices[slot % len(devices)]] for slot in range(slots)]
    return [list(devices[slot * per_slot : (slot + 1) * per_slot]) for slot in range(slots)]


def process_start_ticks(pid: int) -> int | None:
    """Return when a process began, in the kernel's ticks since boot.

    It distinguishes a process from a later one with the same number. None if it has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_log_open(log: Path) -> bool:
    """Whether a process still has this job's log open, such as one of a killed sweep."""
    try:
        with open(open_regular(log), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it does not exist, or is no file
        return False
    return False


def wait_for_orphans(
    orphans: Sequence[tuple[Path, int | None, int | None]], *, grace_s: float
) -> int:
    """Wait until the jobs of a killed sweep have saved and ended, and kill those that do not.

    Args:
        orphans: log, process id and when that process began (`process_start_ticks`).
        grace_s: seconds for all of them.

    Returns:
        How many had to be killed.
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
