"""Stopping by signal: the first one asks, a second SIGINT does not wait."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from runner.distributed.ranks import Ranks, current_ranks

PRUNED = 1 << 10  # in a signal's place, and larger than any, so that ranks agree on it first
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class StopSignal:
    """Whether training was asked to stop, and by which signal."""

    ranks: Ranks
    signal: int | None = None  # on which all ranks have agreed; alone, at once
    local_signal: int | None = None  # by this process

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def request(self, number: int) -> None:
        """A signal, or somebody in this process who asks as one would. The first one holds."""
        if self.local_signal is None:
            self.local_signal = number
            if not self.ranks.is_distributed:
                self.signal = number

    def set_agreed(self, largest: float) -> None:
        """Takes the largest of what the ranks have heard, however they exchanged it."""
        if self.ranks.is_distributed and self.signal is None:
            self.signal = int(largest) or None

    @property
    def pruned(self) -> bool:
        """The sweep that this run belongs to has seen enough of it."""
        return self.signal == PRUNED

    def prune(self) -> None:
        """Of one rank: the others learn it in `agreed`."""
        self.request(PRUNED)

    def sync_ranks(self) -> bool:
        """Collective. Whether to stop now: any rank heard a signal, and all know it from here."""
        if self.ranks.is_distributed and self.signal is None:
            self.set_agreed(self.ranks.all_reduce_max(self.local_signal or 0))
        return self.requested


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turns SIGINT and SIGTERM into a request; a second SIGINT leaves at once with exit code 130.

    Leaving at once is safe: a checkpoint that is being written has no manifest yet, so the one
    before it is the newest.
    """
    stop = StopSignal(current_ranks())

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.local_signal is not None and number == signal.SIGINT:
            sys.stderr.write("\nstopped at once; the newest whole checkpoint is kept\n")
            sys.stderr.flush()
            os._exit(EXIT_CODES[signal.SIGINT])
        stop.request(number)

    before = {number: signal.signal(number, on_signal) for number in EXIT_CODES}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
