"""Ranks under torchrun, which sends all of them SIGTERM when one fails. Imports no torch.

Rank 0 must still record the outcome of the run. During training SIGTERM asks for a stop, as
everywhere, and the next exchange with the failed rank fails; this covers the time before and after.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from runner.distributed.launcher import ProcessResult
from runner.distributed.parent_death import die_with_parent


class _TerminatedError(BaseException):
    """SIGTERM arrived while no other exception was being handled."""


def run_under_torchrun(work: Callable[[], ProcessResult]) -> ProcessResult:
    """Call `work` and return its result, even if SIGTERM ends it.

    On Linux this process ends with torchrun's agent, which may be killed: it would continue
    training with the other nodes, and nobody would restart it when it fails.

    SIGTERM is ignored afterwards, see `ignore_sigterm`.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        if sys.exc_info()[0] is None:  # otherwise the error being handled is more informative
            raise _TerminatedError

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(os.getppid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, terminate)
    try:
        return work()
    except _TerminatedError:
        message = "ended by SIGTERM outside of training: torchrun sends it when a rank fails"
        return ProcessResult(143, "interrupted", message)
    finally:
        ignore_sigterm()


def ignore_sigterm() -> None:
    """Ignore SIGTERM from now on, so that this process can write its result.

    That takes less than the half minute after which torchrun's agent kills it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
