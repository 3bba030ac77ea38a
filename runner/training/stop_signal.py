"""Stopping by signal: the first one asks, a second SIGINT does not wait."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from runner.distributed.ranks import Ranks, this_process

PRUNED = 1 << 10  # in a signal's place, and larger than any, so that ranks agree on it first
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class Stop:
    """Whether training was asked to stop, and by which signal."""

    ranks: Ranks
    signal: int | None = None  # on which all ranks have agreed; alone, at once
    heard: int | None = None  # by this process

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def hear(self, number: int) -> None:
        """A signal, or somebody in this process who asks as one would. The first one holds."""
        if self.heard is None:
            self.heard = number
            if not self.ranks.several:
                self.signal = number

    def agree(self, heard: float) -> None:
        """Takes the largest of what the ranks have heard, however they exchanged it."""
        if self.ranks.several and self.signal is None:
            self.signal = int(heard) or None

    @property
    def pruned(self) -> bool:
        """The sweep that this run belongs to has seen enough of it."""
        return self.signal == PRUNED

    def prune(self) -> None:
        """Of one rank: the others learn it in `agreed`."""
        self.hear(PRUNED)

    def agreed(self) -> bool:
        """Collective. Whether to stop now: any rank heard a signal, and all know it from here."""
        if self.ranks.several and self.signal is None:
            self.agree(self.ranks.largest(self.heard or 0))
        return self.requested


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turns SIGINT and SIGTERM into a request; a second SIGINT leaves at once with exit code 130.

    Leaving at once is safe: a checkpoint that is being written has no manifest yet, so the one
    before it is the newest.
    """
    stop = Stop(this_process())

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.heard is not None and number == signal.SIGINT:
            sys.stderr.write("\nstopped at once; the newest whole checkpoint is kept\n")
            sys.stderr.flush()
            os._exit(EXIT_CODES[signal.SIGINT])
        stop.hear(number)

    before = {number: signal.signal(number, on_signal) for number in EXIT_CODES}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
