"""The client of `runner/launch/fork_server.py`, which imports once for all jobs of a sweep.

Messages over a Unix socket that keeps their bounds: the server begins with "ready"; a request is
a job's command, its words separated by NUL, with the descriptors of its log and of a pipe; the
answer is the process id of the job, which then waits for a byte in the pipe. Any other answer is
the reason why no job can be forked, and is the last one. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

from runner.distributed import parent_death
from runner.rundir.readers import last_line_of

SERVER = ("-m", "runner.launch.fork_server")  # what Python runs
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_MAX_ANSWER = 4096  # bytes of a message, and of the end of the error output that is read


def no_fork(command: Sequence[str], output: int) -> None:
    """Replace `ForkServer.start` where each job is a new process."""


class ForkedJobs:
    """Forks the jobs of a sweep that have one process, on Linux and without CUDA.

    A fork has the environment and the number of threads of the time when the libraries were
    imported. A job that needs others, such as another `trainer.num_threads`, is a new process.
    """

    def __init__(self, is_on: bool) -> None:
        self._is_on = is_on and sys.platform == "linux"
        self.server: ForkServer | None = None

    def starter(
        self, env: Mapping[str, str], num_threads: int, num_ranks: int
    ) -> Callable[[Sequence[str], int], int | None]:
        """Return a function that forks a job if possible; its first use starts the imports.

        Args:
            num_threads: of its only rank.
            num_ranks: its processes. Several are forked by the job itself before it imports torch.
        """
        if not self._is_on or num_ranks > 1:
            return no_fork
        if self.server is None:
            self.server = ForkServer(env, num_threads)
        is_alike = self.server.num_threads == num_threads and self.server.env == env
        return self._fork if is_alike else no_fork

    def _fork(self, command: Sequence[str], output: int) -> int | None:
        assert self.server is not None
        pid = self.server.start(command, output)
        if self.server.problem is not None:
            self._is_on = False
            text = "jobs are forked no more, and each imports for itself (launcher.fork_server)"
            print(f"{text}: {self.server.problem}", file=sys.stderr, flush=True)
        return pid


class ForkServer:
    """Forks processes that have already imported the libraries of a training, while that works.

    Its process ends with this object, or with the sweep if that is killed.
    """

    def __init__(self, env: Mapping[str, str], num_threads: int) -> None:
        """Start the process; it takes seconds until it is ready.

        Args:
            env: environment of every job.
            num_threads: of every job; libraries read it when they are imported.
        """
        self.env, self.num_threads = dict(env), num_threads
        self.problem: str | None = None  # why it forks no more
        self._is_ready = False
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = os.memfd_create("errors")
        with server_socket:
            self._process = subprocess.Popen(
                parent_death.child_command(
                    *(sys.executable, *SERVER, str(server_socket.fileno()), str(num_threads))
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=self.env,
                start_new_session=True,
                pass_fds=[server_socket.fileno()],
            )
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end, self._process, self._socket, self._errors)

    def start(self, command: Sequence[str], output: int) -> int | None:
        """Fork a job, which becomes a child of this process.

        Args:
            command: `python -m runner` and its words.
            output: descriptor of the job's log.

        Returns:
            The job's process id. None: it must start as a new process, as a signal has come while
            the imports ran, or for `problem`.
        """
        if self.problem is not None:
            return None
        try:
            if not self._is_ready:
                if not self._wait_until_ready():
                    return None
                self._is_ready = self._receive() == "ready"
            return self._request("\0".join(command).encode(errors="surrogateescape"), output)
        except (BrokenPipeError, ConnectionResetError):
            self.problem = self._reason_of_end()
        except (OSError, _RefusedError) as error:
            self.problem = str(error)
        self._end()
        return None

    def _request(self, words: bytes, output: int) -> int:
        wait_fd, permit = os.pipe()
        try:
            with _adopting():
                socket.send_fds(self._socket, [words], [output, wait_fd])
                pid = int(self._receive())
            os.write(permit, b"!")  # without it, as if the answer is lost, the job ends itself
        finally:
            os.close(wait_fd)
            os.close(permit)
        return pid

    def _wait_until_ready(self) -> bool:
        """Wait for the imports; return False on a signal, which must be handled at once."""
        read, write = socket.socketpair()
        with read, write:
            write.setblocking(False)
            before = signal.set_wakeup_fd(write.fileno())
            try:
                ready, _, _ = select.select([self._socket, read], [], [])
            finally:
                signal.set_wakeup_fd(before)
        return self._socket in ready

    def _receive(self) -> str:
        """Return an answer.

        Raises:
            _RefusedError: with the reason, if there will be no job.
        """
        reply = self._socket.recv(_MAX_ANSWER).decode()
        if reply == "ready" or reply.isdecimal():
            return reply
        raise _RefusedError(reply or self._reason_of_end())

    def _reason_of_end(self) -> str:
        """Return the last line of the process's errors, or its exit code."""
        code = self._process.wait()
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _MAX_ANSWER, max(0, size - _MAX_ANSWER)).decode(
            errors="replace"
        )
        return last_line_of(text) or f"it has ended with exit code {code}"


class _RefusedError(Exception):
    """The server will fork no more."""


def _end(process: subprocess.Popen[bytes], connection: socket.socket, errors: int) -> None:
    connection.close()
    os.close(errors)
    process.kill()  # it has nothing to save
    process.wait()


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Make this process the parent of orphans of its children (a subreaper) within the block."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
