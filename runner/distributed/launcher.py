"""Ranks as processes of this machine: forked, watched, and gone when one of them fails. No torch.

The parent has composed, checked and opened the run directory before it forks, so that nothing of
that is handed over, written down or done twice. It trains nothing itself.
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

# A rank that fails makes the others fail at their next exchange; those that wait for it longer
# than this, because they are stopped or hang, are killed.
GRACE_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LONGEST_TEXT = 20_000  # characters of a report, which a pipe takes without a reader

# The socket at which rank 0 of our own ranks serves the store that all of them meet at.
store_socket: socket.socket | None = None


@dataclass(frozen=True)
class ProcessResult:
    """How a process of a job ended. `refused`: a mistake of the configuration or the data."""

    code: int
    status: str = "completed"  # or pruned, interrupted, refused, failed
    message: str = ""
    trace: str = ""
    at: float = 0.0  # monotonic seconds

    @property
    def is_ok(self) -> bool:
        return self.status in ("completed", "pruned", "interrupted")


@dataclass
class _Rank:
    number: int
    pid: int
    reports: int  # end of the pipe on which it tells how it ended
    handle: int  # pidfd: readable when it is dead; -1 where the system has none
    ended: ProcessResult | None = None
    killed: bool = False  # by us


def run_on_ranks(num_ranks: int, work: Callable[[], ProcessResult]) -> ProcessResult:
    """Calls `work` in `num_ranks` forked processes; returns how the first that failed ended, else
    how rank 0 did.

    In each RANK, WORLD_SIZE and the like are set as torchrun sets them. SIGINT and SIGTERM are
    passed on to all. Nothing is left when it returns, or if this process is killed (on Linux).
    """
    ranks: list[_Rank] = []
    asked: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        _send_signal(ranks, number)

    with _handlers(pass_on), _listening() as listener:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in range(num_ranks):
            ranks.append(_fork(number, num_ranks, listener, ranks, before, work))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            _watch(ranks)
        finally:
            _kill(ranks)
    return _first_failure(ranks, asked[0] if asked else None)


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
        # of a process group of its own: the terminal's Ctrl-C comes once, through the parent
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
        ended = _call(work)
        ended = replace(
            ended,
            message=ended.message[:_LONGEST_TEXT],
            trace=ended.trace[-_LONGEST_TEXT:],
            at=time.monotonic(),
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(report, json.dumps(asdict(ended)).encode())
        os._exit(ended.code)
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
    # all are on this machine, whose name need not lead to an address
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if number == 0:
        store_socket = listener
    else:
        listener.close()


def _call(work: Callable[[], ProcessResult]) -> ProcessResult:
    try:
        return work()
    except KeyboardInterrupt:
        return ProcessResult(130, "interrupted", "interrupted before it had begun")
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        return ProcessResult(1, "failed", message, traceback.format_exc())


def _watch(ranks: list[_Rank]) -> None:
    """Returns when all have ended, or some time after one has ended badly."""
    deadline: float | None = None
    while alive := [r for r in ranks if r.ended is None]:
        handles = [r.handle for r in alive if r.handle >= 0]
        select.select(handles, [], [], 0.5 if len(handles) == len(alive) else 0.05)
        for rank in alive:
            rank.ended = _reap(rank)
            if rank.ended is not None and not rank.ended.is_ok and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return


def _reap(rank: _Rank) -> ProcessResult | None:
    pid, status = os.waitpid(rank.pid, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(rank.reports, False)
    text = b""
    with suppress(BlockingIOError):  # a process that it left behind has the pipe open
        while piece := os.read(rank.reports, 1 << 20):
            text += piece
    os.close(rank.reports)
    if rank.handle >= 0:
        os.close(rank.handle)
    if text:
        return ProcessResult(**json.loads(text))
    if code < 0:
        name = signal.Signals(-code).name
        message = f"rank {rank.number} was killed by {name}"
        return ProcessResult(1, "failed", message, at=-1.0)  # what the others tell came of this
    return ProcessResult(
        code or 1, "failed", f"rank {rank.number} left with exit code {code}", at=-1.0
    )


def _kill(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.ended is None:
            rank.killed = True
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
    for rank in ranks:
        while rank.ended is None:
            rank.ended = _reap(rank)
            time.sleep(0.005)


def _send_signal(ranks: list[_Rank], number: int) -> None:
    for rank in ranks:
        if rank.ended is None:  # not reaped, so that the number is still its own
            with suppress(ProcessLookupError):
                os.kill(rank.pid, number)


def _first_failure(ranks: list[_Rank], asked: int | None) -> ProcessResult:
    """The first that failed by itself; rank 0 if none did."""
    ends = {rank.number: rank.ended for rank in ranks if rank.ended is not None}
    bad = [(end.at, n) for n, end in ends.items() if not end.is_ok and not ranks[n].killed]
    if not bad:
        return ends[0]
    first = ends[min(bad)[1]]
    if asked is not None and first.at < 0:  # it left at once, as it was asked to
        return ProcessResult(128 + asked, "interrupted")
    number = min(bad)[1]
    if first.status == "failed" and not first.message.startswith("rank "):
        return replace(first, message=f"rank {number}: {first.message}")
    return first


@contextmanager
def _handlers(handler: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _listening() -> Iterator[socket.socket]:
    """A socket of a port that nobody else can get in between."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield listener
