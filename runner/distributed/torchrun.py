"""Ranks that torchrun has started end by its SIGTERM when one of them fails. No torch here.

Rank 0 then has something to write: how the run ended. In training SIGTERM asks for a stop, as
everywhere, and the exchange with the rank that is gone fails; this is about before and after.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from runner.distributed.launcher import ProcessResult


class _TerminatedError(BaseException):
    """SIGTERM, where nothing else is on its way up."""


def run_under_torchrun(work: Callable[[], ProcessResult]) -> ProcessResult:
    """Calls `work`, and returns whatever ends it, a SIGTERM included. Afterwards see `stand`."""

    def end(number: int, frame: FrameType | None) -> None:
        if sys.exc_info()[0] is None:  # else the error that is being told already says more
            raise _TerminatedError

    signal.signal(signal.SIGTERM, end)
    try:
        return work()
    except _TerminatedError:
        message = "ended by SIGTERM outside of training: torchrun sends it when a rank fails"
        return ProcessResult(143, "interrupted", message)
    finally:
        ignore_sigterm()


def ignore_sigterm() -> None:
    """From here on SIGTERM does not end this process: it has a result to write, which takes less
    than the half minute after which the agent kills."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
