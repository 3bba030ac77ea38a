"""Ranks as forked processes of this machine, all of which end when one fails. Imports no torch.

The parent composes and checks the configuration and opens the run directory before it forks, so
that nothing of this is serialised or done twice. It does no training itself.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runner.distributed.parent_death import die_with_parent

# When a rank fails, the others fail at their next exchange with it. Those still running after
# this time, because they are stopped or hang, are killed.
GRACE_S = 5.0
# Ranks that were told to stop, have not agreed to it and have not computed for this time are stuck.
IDLE_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_TEXT = 20_000  # characters of a report
_MAX_BYTES = 60_000  # of a report, small enough for the buffer of a pipe without a reader

# The socket on which rank 0 serves the store for the rendezvous of ranks that we fork.
store_socket: socket.socket | None = None
_report: int | None = None  # in a rank that we forked: the pipe on which it reports its result


@dataclass(frozen=True)
class ProcessResult:
    """The outcome of a process of a job."""

    code: int
    # completed, pruned, interrupted, failed, or refused for an error in configuration or data
    status: str = "completed"
    message: str = ""
    trace: str = ""
    at: float = 0.0  # monotonic seconds

    @property
    def is_ok(self) -> bool:
        return self.status in ("completed", "pruned", "interrupted")

    @property
    def is_broken(self) -> bool:
        """Whether others wait for it in vain, unlike for a job that has failed on all ranks."""
        return not self.is_ok and bool(self.message)


@dataclass
class _Rank:
    number: int
    pid: int
    reports: int  # read end of the pipe for its result
    handle: int  # pidfd, readable once the process has ended; -1 where the system has none
    result: ProcessResult | None = None
    was_killed: bool = False  # by this module

    def has_agreed(self) -> bool:
        """Return whether it has agreed with the others to stop, see `acknowledge_stop`."""
        return bool(select.select([self.reports], [], [], 0)[0])

    def cpu_s(self) -> float:
        """Return the seconds for which it has computed; 0 if the system does not provide this."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                ticks = file.read().rpartition(")")[2].split()[11:13]
        except OSError:
            return 0.0
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@dataclass
class _Signals:
    """The signals that the parent has received, and whether the ranks have computed since then."""

    grace_s: float | None
    numbers: list[int] = field(default_factory=list)
    last_s: float = math.inf  # when the last one came, on the monotonic clock
    first_s: float = math.inf
    _busy_s: float = 0.0  # when the ranks were last seen to compute
    _looked: tuple[float, float] = (0.0, 0.0)  # when last checked, and seconds computed by then
    _is_told: bool = False

    def receive(self, number: int) -> None:
        self.numbers.append(number)
        self.last_s = time.monotonic()
        self.first_s = min(self.first_s, self.last_s)

    def why_over(self, alive: list[_Rank]) -> str:
        """Return why ranks that are still running must be ended; empty if they need not be."""
        now = time.monotonic()
        if signal.SIGINT in self.numbers[1:] and now > self.last_s + 1:  # they may be stuck
            return "interrupted at once; the newest whole checkpoint is kept"
        waiting = [rank for rank in alive if not rank.has_agreed()] if self.numbers else []
        if not waiting or now < self._looked[0] + 0.5:
            return ""
        before, (looked_s, cpu_s) = self._looked, (now, sum(rank.cpu_s() for rank in waiting))
        if cpu_s - before[1] > 0.05 * (looked_s - before[0]) or not before[0]:
            self._busy_s = now
        self._looked = looked_s, cpu_s
        if now < max(self.first_s, self._busy_s) + IDLE_S:
            return ""
        if self.numbers[0] == signal.SIGINT and not self._is_told:
            self._is_told = True
            message = "a rank waits for another one; Ctrl-C again ends them, without a further save"
            print(f"\n{message}", file=sys.stderr, flush=True)
        has_limit = self.grace_s is not None and self.numbers[0] == signal.SIGTERM
        if not has_limit or now < self.first_s + (self.grace_s or 0):
            return ""
        return (
            "interrupted without a further save: a rank waited for another one for longer than "
            f"{self.grace_s:g} s after the signal (trainer.stop_grace_s); the newest whole "
            "checkpoint is kept"
        )


def acknowledge_stop() -> None:
    """Tell the parent that this rank has agreed with the others to stop, so none is stuck."""
    if _report is not None:
        os.write(_report, b"\n")  # ignored in front of JSON


def run_on_ranks(
    num_ranks: int, work: Callable[[], ProcessResult], *, stop_grace_s: float | None = None
) -> ProcessResult:
    """Call `work` in `num_ranks` forked processes and wait for all of them.

    Each gets RANK, WORLD_SIZE and the like as torchrun sets them. SIGINT and SIGTERM are forwarded
    to all. No process is left when this returns or, on Linux, when the calling process is killed.

    Args:
        stop_grace_s: after SIGTERM, ranks that wait for one that is stuck are ended this late; a
            second SIGINT ends them at once. None: no limit.

    Returns:
        The result of the rank that failed first, or of rank 0 if none failed.
    """
    ranks: list[_Rank] = []
    received = _Signals(stop_grace_s)

    def forward_signal(number: int, frame: Any) -> None:
        received.receive(number)
        _send_signal(ranks, number)

    with signal_handlers(forward_signal, _SIGNALS), _listening_socket() as listener:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in range(num_ranks):
            ranks.append(_fork(number, num_ranks, listener, ranks, before, work))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            why = _watch(ranks, received)
        finally:
            _kill(ranks)
    signum = received.numbers[0] if received.numbers else None
    if signum is not None and why:
        return ProcessResult(128 + signum, "interrupted", why)
    return _first_failure(ranks, signum)


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
        # In a separate process group it gets the terminal's Ctrl-C once, through the parent.
        os.setpgid(0, 0)
        die_with_parent(parent, signal.SIGKILL)
        for other in others:
            os.close(other.reports)
        os.close(reports)
        global _report
        _report = report
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
        shortened = replace(result, message=result.message[:length], trace=result.trace[-length:])
        report = json.dumps(asdict(shortened)).encode()
        if len(report) <= _MAX_BYTES:
            return report
        length //= 2  # JSON writes a character in up to twelve bytes


def _watch(ranks: list[_Rank], received: _Signals) -> str:
    """Return when all ranks have ended, GRACE_S after one has failed, or why they must be ended."""
    deadline: float | None = None
    while alive := [r for r in ranks if r.result is None]:
        handles = [r.handle for r in alive if r.handle >= 0]
        select.select(handles, [], [], 0.5 if len(handles) == len(alive) else 0.05)
        for rank in alive:
            rank.result = _reap(rank)
            if rank.result is not None and rank.result.is_broken and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if why := received.why_over([r for r in alive if r.result is None]):
            return why
        if deadline is not None and time.monotonic() > deadline:
            break
    return ""


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
    if text.strip():
        return ProcessResult(**json.loads(text))
    # Without a report it sorts before the failures of other ranks, which are its consequences.
    if code < 0:
        name = signal.Signals(-code).name
        return ProcessResult(1, "failed", f"rank {rank.number} was killed by {name}", at=-1.0)
    message = f"rank {rank.number} left with exit code {code}"
    return ProcessResult(code or 1, "failed", message, at=-1.0)


def _kill(ranks: list[_Rank]) -> None:
    for rank in ranks:
        rank.was_killed = rank.result is None
    _send_signal(ranks, signal.SIGKILL)
    for rank in ranks:
        while rank.result is None:
            rank.result = _reap(rank)
            time.sleep(0.005)


def _send_signal(ranks: list[_Rank], number: int) -> None:
    for rank in ranks:
        if rank.result is None:  # it is not reaped, so its pid cannot belong to another process
            with suppress(ProcessLookupError):
                os.kill(rank.pid, number)


def _first_failure(ranks: list[_Rank], signum: int | None) -> ProcessResult:
    """Return the result of the first ended rank to fail by itself, or of rank 0 if none failed."""
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
def signal_handlers(handler: Callable[[int, Any], None], numbers: Iterable[int]) -> Iterator[None]:
    """Call `handler` for these signals while the block runs."""
    with ExitStack() as after:
        for number in numbers:
            after.callback(signal.signal, number, signal.signal(number, handler))
        yield


@contextmanager
def _listening_socket() -> Iterator[socket.socket]:
    """Open a socket now, so that no other process can take its port before the rendezvous."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield listener
