"""Stopping by signal: the first one asks, a second SIGINT does not wait."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass
class Stop:
    """Whether training was asked to stop, and by which signal."""

    signal: int | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turns SIGINT and SIGTERM into a request; a second SIGINT leaves at once with exit code 130.

    Leaving at once is safe: a checkpoint that is being written has no manifest yet, so the one
    before it is the newest.
    """
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.requested and number == signal.SIGINT:
            sys.stderr.write("\nstopped at once; the newest whole checkpoint is kept\n")
            sys.stderr.flush()
            os._exit(EXIT_CODES[signal.SIGINT])
        if not stop.requested:
            stop.signal = number

    before = {number: signal.signal(number, on_signal) for number in EXIT_CODES}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
