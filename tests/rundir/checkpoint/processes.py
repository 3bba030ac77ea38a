"""Real processes for the checkpointer's faults: forks that are killed or traced.

The process that forks must have no threads, so that a child can do all that its parent could.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from runner.rundir.checkpoint import CheckpointError

HOOKED = ("open", "write", "fsync", "rename", "mkdir", "rmdir", "unlink")
SYSCALLS = ("openat", "write", "fsync", "rename", "mkdir", "unlinkat", "unlink", "rmdir")
NOT_SAVED = 7  # exit code of a child whose save raised CheckpointError


def fork(work: Callable[[], None]) -> int:
    """Run in a child, and return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except CheckpointError as error:
            write_error(str(error))
            code = NOT_SAVED
        except BaseException as error:
            write_error(f"child: {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    return pid


def write_error(message: str) -> None:
    """Write to stderr with `writev`, since a fault may be injected into `write`."""
    os.writev(2, [f"{message}\n".encode()])


def wait_for_exit(pid: int) -> int:
    """Wait for a child, and return its exit code, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_captured(work: Callable[[], None]) -> tuple[int, str]:
    """Run in a child, and return its exit code and its stderr."""
    reader, writer = os.pipe()  # not a file: the disk may be full, or file sizes limited
    pid = fork(lambda: (os.dup2(writer, 2), work())[1])
    os.close(writer)
    with open(reader) as pipe:
        return wait_for_exit(pid), pipe.read()


def kill_at(k: int, *, torn: bool) -> None:
    """SIGKILL this process at its k-th call that touches the disk; a write may be half done."""
    count = 0

    def hook(name: str) -> None:
        real = getattr(os, name)

        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == k:
                if torn and name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in HOOKED:
        hook(name)


def strace(work: Callable[[], None], *options: str) -> tuple[int, str, str]:
    """Run a fork under strace, and return its exit code, its stderr and the trace."""
    gate, opener = os.pipe()
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def waits() -> None:
        os.dup2(log.fileno(), 2)
        os.read(gate, 1)
        work()

    pid = fork(waits)
    with tempfile.NamedTemporaryFile("r") as trace:
        tracing = f"trace={','.join(SYSCALLS)},read"
        command = ["strace", "-f", "-qq", "-o", trace.name, "-p", str(pid), "-e", tracing]
        tracer = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
        while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
            if tracer.poll() is not None:
                os.kill(pid, signal.SIGKILL)
                wait_for_exit(pid)
                raise PermissionError("strace cannot attach to a process here")
            time.sleep(0.002)
        os.write(opener, b"x")
        code = wait_for_exit(pid)
        tracer.wait()
        os.close(gate)
        os.close(opener)
        log.seek(0)
        return code, log.read(), trace.read()


def why_no_strace() -> str:
    """Return the reason why strace cannot be used, or ""."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        strace(lambda: None)
    except PermissionError as error:
        return str(error)
    return ""
