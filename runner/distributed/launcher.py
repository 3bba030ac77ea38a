"""Ranks as forked processes of this machine, all of which end when one fails. Imports no torch.

The parent composes and checks the configuration and opens the run directory before it forks, so
that nothing of this is serialised or done twice. It does no training itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.distributed.parent_death import die_with_parent

# When a rank fails, the others fail at their next exchange with it. Those that still live after
# this time, because they are stopped or hang, are killed.
GRACE_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_TEXT = 20_000  # characters of a report
_MAX_BYTES = 60_000  # of a report, which a pipe holds without a reader

# The socket on which rank 0 serves the store through which ranks that we fork find each other.
store_socket: socket.socket | None = None


@dataclass(frozen=True)
class ProcessResult:
    """How a process of a job ended."""

    code: int
    # completed, pruned, interrupted, failed, or refused for a mistake in configuration or data
    status: str = "completed"
    message: str = ""
    trace: str = ""
    at: float = 0.0  # monotonic seconds

    @property
    def is_ok(self) -> bool:
        return self.status in ("completed", "pruned", "interrupted")

    @property
    def is_broken(self) -> bool:
        """Whether the others wait for it in vain. A job that has failed on all ranks has not."""
        return not self.is_ok and bool(self.message)


@dataclass
class _Rank:
    number: int
    pid: int
    reports: int  # read end of the pipe on which it reports its result
    handle: int  # pidfd, readable once the process has ended; -1 where the system has none
    result: ProcessResult | None = None
    was_killed: bool = False  # by this module


def run_on_ranks(num_ranks: int, work: Callable[[], ProcessResult]) -> ProcessResult:
    """Call `work` in `num_ranks` forked processes and wait for all of them.

    Each gets RANK, WORLD_SIZE and the like as torchrun sets them. SIGINT and SIGTERM are forwarded
    to all. No process is left when this returns or, on Linux, when the calling process is killed.

    Returns:
        The result of the rank that failed first, or of rank 0 if none failed.
    """
    ranks: list[_Rank] = []
    received_signals: list[int] = []

    def forward_signal(number: int, frame: Any) -> None:
        received_signals.append(number)
        _send_signal(ranks, number)

    with _signal_handlers(forward_signal), _listening_socket() as listener:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in range(num_ranks):
            ranks.append(_fork(number, num_ranks, listener, ranks, before, work))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            _watch(ranks)
        finally:
            _kill(ranks)
    return _first_failure(ranks, received_signals[0] if received_signals else None)


def _fork(
    number: int,
    num_ranks: int,
    listener: socket.socket,
    others: list[_Rank],
    signals_before: set[int | signal.Signals],
    work: Callable[[], ProcessResult],
) -> _Rank:
    reports, report = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(report)
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        return _Rank(number, pid, reports, handle)
    try:
        # In a process group of its own it gets the terminal's Ctrl-C once, through the parent.
        os.setpgid(0, 0)
        die_with_parent(parent, signal.SIGKILL)
        for other in others:
            os.close(other.reports)
        os.close(reports)
        _enter_rank(number, num_ranks, listener)
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals_before)
        result = replace(_call(work), at=time.monotonic())
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(report, _encode(result))
        os._exit(result.code)
    finally:
        os._exit(1)


def _enter_rank(number: int, num_ranks: int, listener: socket.socket) -> None:
    global store_socket
    address, port = listener.getsockname()
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(num_ranks),
        LOCAL_WORLD_SIZE=str(num_ranks),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    # All ranks are on this machine, whose host name may not resolve to an address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if number == 0:
        store_socket = listener
    else:
        listener.close()


def _call(work: Callable[[], ProcessResult]) -> ProcessResult:
    try:
        return work()
    except KeyboardInterrupt:
        return ProcessResult(130, "interrupted", "interrupted before training began")
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        return ProcessResult(1, "failed", message, traceback.format_exc())


def _encode(result: ProcessResult) -> bytes:
    """Return the report of a rank; the end of a long message and the start of a trace are cut."""
    length = _MAX_TEXT
    while True:
        cut = replace(result, message=result.message[:length], trace=result.trace[-length:])
        report = json.dumps(asdict(cut)).encode()
        if len(report) <= _MAX_BYTES:
            return report
        length //= 2  # JSON writes a character in up to twelve bytes


def _watch(ranks: list[_Rank]) -> None:
    """Return when all ranks have ended, or GRACE_S after one has failed."""
    deadline: float | None = None
    while alive := [r for r in ranks if r.result is None]:
        handles = [r.handle for r in alive if r.handle >= 0]
        select.select(handles, [], [], 0.5 if len(handles) == len(alive) else 0.05)
        for rank in alive:
            rank.result = _reap(rank)
            if rank.result is not None and rank.result.is_broken and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return


def _reap(rank: _Rank) -> ProcessResult | None:
    """Return the result of a rank's process if it has ended."""
    pid, status = os.waitpid(rank.pid, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(rank.reports, False)
    text = b""
    with suppress(BlockingIOError):  # raised if a child of that process still has the pipe open
        while data := os.read(rank.reports, 1 << 20):
            text += data
    os.close(rank.reports)
    if rank.handle >= 0:
        os.close(rank.handle)
    if text:
        return ProcessResult(**json.loads(text))
    # Without a report it sorts before the failures of other ranks, which are its consequences.
    if code < 0:
        name = signal.Signals(-code).name
        return ProcessResult(1, "failed", f"rank {rank.number} was killed by {name}", at=-1.0)
    message = f"rank {rank.number} left with exit code {code}"
    return ProcessResult(code or 1, "failed", message, at=-1.0)


def _kill(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.result is None:
            rank.was_killed = True
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
    for rank in ranks:
        while rank.result is None:
            rank.result = _reap(rank)
            time.sleep(0.005)


def _send_signal(ranks: list[_Rank], number: int) -> None:
    for rank in ranks:
        if rank.result is None:  # it is not reaped, so that its pid cannot be another process's
            with suppress(ProcessLookupError):
                os.kill(rank.pid, number)


def _first_failure(ranks: list[_Rank], signum: int | None) -> ProcessResult:
    """Return the result of the rank that was first to fail by itself, or of rank 0 if none was.

    Args:
        ranks: all of which have ended.
        signum: the signal that this process received first, if any.
    """
    results = {rank.number: rank.result for rank in ranks if rank.result is not None}
    failures = [(r.at, n) for n, r in results.items() if not r.is_ok and not ranks[n].was_killed]
    if not failures:
        return results[0]
    number = min(failures)[1]
    first = results[number]
    if signum is not None and first.at < 0:  # the signal ended it at once
        return ProcessResult(128 + signum, "interrupted")
    if first.status == "failed" and first.message and not first.message.startswith("rank "):
        return replace(first, message=f"rank {number}: {first.message}")
    return first


@contextmanager
def _signal_handlers(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _listening_socket() -> Iterator[socket.socket]:
    """Open a socket now, so that no other process can take its port before the ranks meet."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield listener
