"""A process that has imported what a training imports, and forks the jobs of a sweep.

Started as `python -m runner.launch.fork_server SOCKET THREADS` by `runner/sweep/forked_jobs.py`,
which describes the messages. It composes the options that jobs choose, once for all jobs with the
same choice; it never builds anything, reads data or draws numbers, and forks only while it has
one thread: then a fork differs from a new process only in saving the time of imports and Hydra,
and in the seed of Python's hashes, which all forks share and no result depends on.
A job is forked twice, so that the kernel gives it to the sweep as its child, which alone waits for
it, signals it, and takes it along when it dies.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.distributed.parent_death import become_job
from runner.errors import UserError
from runner.machine.cores import set_thread_environment
from runner.machine.imports import end_imports, postpone_full_collections
from runner.rundir.masked_streams import mask_standard_streams

# The imports of a whole training; a job imports by itself what is missing here.
MODULES = (
    *("runner.cli.flags", "runner.config.composed_checks", "runner.config.rules.resume"),
    *("runner.launch.job", "runner.launch.mirror", "runner.data.prepare.fingerprint"),
    *("runner.data.prepare.outline", "runner.data.sets.planted_model", "runner.training.builder"),
    *("runner.reporting.console", "runner.training.loops.train", "runner.training.health.compare"),
)
_PACKAGE = Path(__file__).parent.parent
_JEMALLOC_SETTINGS = "JE_ARROW_MALLOC_CONF"  # of the allocator that comes with Arrow
_MAX_REQUEST = 1 << 20  # bytes
# A choice of an option, or Hydra's own keys except the folder; `run=` would read a run.
_CHOICE = re.compile(r"(?!run=|hydra\.run\.dir=)([\w/@]+=|~[\w/@]+$|hydra\.)")


def serve(connection: socket.socket, sweep: int, num_threads: int) -> list[str] | None:
    """Answer requests until the sweep closes the connection.

    Returns:
        In a forked job: its command. In this process, at the end: None.
    """
    sources = _source_versions()
    problem = _import_all(num_threads)
    connection.send(problem.encode() or b"ready")
    composed: set[tuple[str, ...]] = set()
    while not problem:
        message, fds, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 2)
        if not message:
            return None
        command = message.decode(errors="surrogateescape").split("\0")
        _compose_options(command, composed)
        if _source_versions() != sources:
            problem = "the runner's code has changed since it was imported"
            connection.send(problem.encode())
            return None
        pid = _fork_twice()
        if pid == 0:
            connection.close()
            _enter_job(sweep, *fds)
            return command
        for fd in fds:
            os.close(fd)
        connection.send(b"%d" % pid if pid is not None else b"no further process can be made")
    return None


def _import_all(num_threads: int) -> str:
    """Import what jobs need; return why no job can be forked, or an empty text."""
    before = dict(os.environ)
    # The libraries read these when they are loaded. A job sets its own before it builds anything.
    set_thread_environment(num_threads)
    os.environ.setdefault(_JEMALLOC_SETTINGS, "background_thread:false")
    postpone_full_collections()
    for module in MODULES:
        importlib.import_module(module)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    logging.getLogger().handlers.clear()  # FBGEMM adds one, which would print a run's logs
    if (cuda := sys.modules.get("torch.cuda")) is not None and cuda.is_initialized():
        return "CUDA is in use"
    # OpenBLAS ends its threads when a process forks, and makes new ones when they are needed.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    end_imports()  # a job's garbage collector need not write to the pages that all jobs share
    num_running = len(os.listdir("/proc/self/task"))
    return "" if num_running == 1 else f"threads that the imports have started: {num_running - 1}"


def _compose_options(command: Sequence[str], composed: set[tuple[str, ...]]) -> None:
    """Compose the options of a job that are not in `composed` yet, for the use of its fork."""
    has_own_folders = any(word.startswith(("--config-dir", "-cd")) for word in command)
    words = tuple(word for word in command[3:] if _CHOICE.match(word))
    if has_own_folders or words in composed or "runner.config.composed_checks" not in sys.modules:
        return
    from runner.config.compose import compose_job

    composed.add(words)
    with suppress(UserError):  # the job reports errors in its command
        compose_job(words)


def _source_versions() -> dict[str, tuple[int, int]]:
    """Return the state of our sources, which changes when a file does.

    A job records this state at its start, which must be that of the code it runs.
    """
    versions = {}
    for path in _PACKAGE.rglob("*.py"):
        status = path.stat()
        versions[str(path)] = status.st_mtime_ns, status.st_size
    return versions


def _fork_twice() -> int | None:
    """Return 0 in the job, which the kernel has given to the sweep, and its pid in this process.

    None: no further process can be created.
    """
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        return None
    if between == 0:
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid:
            os._exit(0)
        os.setsid()  # before the sweep gets the pid, since it may kill the whole session at once
        os.write(write, b"%d" % os.getpid())
        os.close(read)
        os.close(write)
        return 0
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        number = answer.read()
    os.waitpid(between, 0)  # from now on the job is a child of the sweep
    return int(number) if number else None


def _enter_job(sweep: int, output: int, permit: int) -> None:
    """Bring a fork into the state of a new process of the sweep."""
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    if not os.read(permit, 1):  # the sweep does not know this process, or has ended
        os._exit(143)
    os.close(permit)
    become_job(sweep)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python's own generator is reseeded in a fork; a run seeds all that its results depend on.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def main() -> None:
    """Serve the sweep that started this process, and run the command in each fork."""
    connection, sweep = socket.socket(fileno=int(sys.argv[1])), os.getppid()
    mask_standard_streams()  # first, as in any run: libraries keep the streams that they find
    command = serve(connection, sweep, int(sys.argv[2]))
    if command is None:
        os._exit(0)
    _, _, module, *words = command  # python -m MODULE WORD...
    sys.orig_argv, sys.argv = command, [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
