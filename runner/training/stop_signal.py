"""Stops a training on a signal: after the update for the first, at once for a second SIGINT."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from runner.distributed.launcher import acknowledge_stop, signal_handlers
from runner.distributed.ranks import Ranks, current_ranks

PRUNED = 1 << 10  # used like a signal; larger than any, so that it wins if ranks differ
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class StopSignal:
    """Whether training was asked to stop, and by which signal."""

    ranks: Ranks
    signal: int | None = None  # agreed on by all ranks; a single process needs no agreement
    local_signal: int | None = None  # received by this process
    received_s: float | None = None  # when that was, on the monotonic clock

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def request(self, number: int) -> None:
        """Request a stop, for a signal or by code of this process; only the first one counts."""
        if self.local_signal is None:
            self.local_signal, self.received_s = number, time.monotonic()
            if not self.ranks.is_distributed:
                self.signal = number

    def set_agreed(self, largest: float) -> None:
        """Take the largest number among the signals of all ranks, which the caller exchanged."""
        if self.ranks.is_distributed and self.signal is None:
            self.signal = int(largest) or None
            if self.requested:
                acknowledge_stop()

    @property
    def pruned(self) -> bool:
        """Whether the sweep of this run has ended it."""
        return self.signal == PRUNED

    def prune(self) -> None:
        """Request a stop because the sweep ends this run; ranks learn of it in `sync_ranks`."""
        self.request(PRUNED)

    def sync_ranks(self) -> bool:
        """Return whether to stop: whether any rank has received a signal.

        Collective. All ranks know it afterwards.
        """
        if self.ranks.is_distributed and self.signal is None:
            self.set_agreed(self.ranks.all_reduce_max(self.local_signal or 0))
        return self.requested


class GracePeriod:
    """The time left to an evaluation after SIGTERM, before a possible SIGKILL.

    After SIGINT there is no limit: a second one ends the wait.

    Args:
        seconds: since the signal; None: no limit.
    """

    def __init__(self, stop: StopSignal, seconds: float | None) -> None:
        self._ranks = stop.ranks
        self._ends_s = math.inf
        if seconds is not None and stop.signal == signal.SIGTERM:
            self._ends_s = (stop.received_s or time.monotonic()) + seconds

    def sync_ranks(self) -> bool:
        """Return whether the time is over on any rank. Collective."""
        return bool(self._ranks.all_reduce_max(time.monotonic() >= self._ends_s))


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turn SIGINT and SIGTERM into a request; a second SIGINT exits at once with code 130.

    That is safe: a checkpoint that is being written has no manifest yet, so the one before it is
    the newest. Signals reach the main thread alone: a training in another one is not stopped by
    them.
    """
    stop = StopSignal(current_ranks())

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.local_signal is not None and number == signal.SIGINT:
            sys.stderr.write("\nstopped at once; the newest whole checkpoint is kept\n")
            sys.stderr.flush()
            os._exit(EXIT_CODES[signal.SIGINT])
        stop.request(number)

    numbers = EXIT_CODES if threading.current_thread() is threading.main_thread() else ()
    with signal_handlers(on_signal, numbers):
        yield stop
