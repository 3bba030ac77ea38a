"""Signals to the sweep: the first lets its jobs save, a second Ctrl-C does not wait for that."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from runner.distributed.launcher import signal_handlers
from runner.sweep.local_process import LocalProcess

# Signal to the sweep -> signal to its jobs. A closed terminal (SIGHUP) asks to stop like SIGTERM.
_JOB_SIGNALS = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}

# One Ctrl-C may come twice within a moment: from the terminal, and passed on by a program that
# started the sweep. Nobody presses it twice within this time.
_SAME_PRESS_S = 0.1


class StopRequest:
    """Whether the sweep was asked to stop, and how urgently. Only the sweep's own loop acts on it.

    Attributes:
        signal: the first one that came; the exit code is 128 plus the jobs' signal.
        is_immediate: whether jobs are killed instead of being asked to save.
    """

    def __init__(self, wake_fd: int = -1) -> None:
        self.signal: int | None = None
        self.requested = False
        self.is_immediate = False
        self._since = 0.0
        self._wake_fd = wake_fd

    @property
    def job_signal(self) -> int:
        """The signal that running jobs are sent."""
        return int(_JOB_SIGNALS[signal.Signals(self.signal or signal.SIGTERM)])

    @property
    def exit_code(self) -> int:
        return 128 + self.job_signal if self.signal else 1

    def request_stop(self, signum: int | None = None) -> None:
        """Ask the sweep to stop.

        Args:
            signum: the signal that came; None: the sweep itself cannot go on.
        """
        now = time.monotonic()
        if self.requested and signum == signal.SIGINT and now - self._since > _SAME_PRESS_S:
            self.is_immediate = True
        if not self.requested:
            self.requested, self._since = True, now
        self.signal = self.signal or signum

    def wait(self, handles: Sequence[LocalProcess], timeout_s: float) -> None:
        """Wait until a job ends, a signal comes, or the time is over."""
        poll = select.poll()
        fds = [fd for handle in handles if (fd := handle.fileno()) >= 0]
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._wake_fd >= 0:
            poll.register(self._wake_fd, select.POLLIN)
        # Without a descriptor for every job there is nothing to wait for: look again soon.
        short = timeout_s if len(fds) == len(handles) else min(timeout_s, 0.02)
        ready = poll.poll(max(1, short * 1000))
        if any(fd == self._wake_fd for fd, _ in ready):
            os.read(self._wake_fd, 512)


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into requests while the jobs run."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    stop_request = StopRequest(read_fd)
    # Under nohup a closed terminal is no reason to stop. An ignored Ctrl-C was nobody's choice.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    request = lambda number, _: stop_request.request_stop(number)
    with signal_handlers(request, _JOB_SIGNALS.keys() - ignored), ExitStack() as after:
        after.callback(os.close, write_fd)
        after.callback(os.close, read_fd)
        wake_before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        after.callback(signal.set_wakeup_fd, wake_before)
        yield stop_request
