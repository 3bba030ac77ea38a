"""The part of a job that needs torch, in this process: from a checked configuration to its end.

Imports what is heavy late: what comes before must not wait for it.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from runner.config.compose import Composed
from runner.distributed.launcher import Ended
from runner.distributed.torchrun import stand
from runner.distributed.world_size import launched_rank, launched_size
from runner.errors import UserError
from runner.machine import is_out_of_memory
from runner.rundir.run import Run, run_elsewhere, write_result


def run_job(composed: Composed, run: Run | None, allowed: Sequence[str]) -> Ended:
    """Collective, where ranks were started. The job from its parts to its result.

    Args: run: on ranks other than 0 one that another process has opened, or None if only rank 0
    knows it.
    """
    try:
        from runner.reporting.console import View
        from runner.training.builder import build

        is_chief, started = launched_rank() == 0, launched_size() is not None
        if started:
            run = _known_to_all(run, _join(composed))
        with nullcontext() if is_chief else quiet(run.dir if run else None):
            view = View() if is_chief else View(open(os.devnull, "w"))  # noqa: SIM115
            job = build(composed.config, run, view=view, allowed=allowed, name=composed.name)
            result = job.loop(job)
        if started:
            stand()  # another rank may fail at its end, and this one has a result
        if run is not None and is_chief:
            values = {k: v for k, v in vars(result).items() if k != "notes"}
            write_result(run, {**values, **result.notes})
        if started:
            _leave()
    except _DismissedError as told:
        return Ended(told.code, "dismissed")
    except UserError as error:
        return Ended(2, "refused", str(error), traceback.format_exc())
    except KeyboardInterrupt:
        return Ended(130, "interrupted", "interrupted before it had begun")
    except Exception as error:
        return Ended(1, "failed", _short(error), traceback.format_exc())
    code = exit_code(result)
    return Ended(code, "failed" if code == 1 else result.status)


class _DismissedError(Exception):
    """Rank 0 has no job for the others: it is done already, or cannot be."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def _known_to_all(run: Run | None, ranks: Any) -> Run | None:
    """Collective. The open run directory, of which torchrun's ranks know only on rank 0."""
    told = ranks.share(None if run is None else (run.dir, run.signature, dict(run.meta)))
    if ranks.is_chief or not ranks.several:
        return run
    if isinstance(told, int):
        raise _DismissedError(told)
    return None if told is None else run_elsewhere(*told)


def dismiss(composed: Composed, code: int) -> None:
    """Ends the ranks that torchrun has started beside this one and that wait for a run."""
    if (launched_size() or 1) == 1:
        return
    _join(composed).share(code)
    _leave()


def _join(composed: Composed) -> Any:
    """Collective. The ranks that were started with this process."""
    from runner.config.settings import TrainerSettings, settings_from
    from runner.training.builder import join_ranks

    return join_ranks(settings_from(TrainerSettings, composed.config["trainer"]))


def _leave() -> None:
    from runner.distributed.process_group import leave

    leave()


@contextmanager
def quiet(folder: Path | None) -> Iterator[None]:
    """What is printed here, warnings of libraries included, goes into the run's `log.txt`."""
    logging.getLogger("runner.reporting.console").setLevel(logging.CRITICAL)  # rank 0 logs the same
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    to = os.open(folder / "log.txt" if folder else os.devnull, flags, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    try:
        os.dup2(to, 1)
        os.dup2(to, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in enumerate(before, start=1):
            os.dup2(kept, number)
            os.close(kept)
        os.close(to)


def exit_code(result: Any) -> int:
    """0 completed or pruned, 1 failed, 128 + the signal that interrupted it."""
    if result.status in ("completed", "pruned"):
        return 0
    return 128 + result.signal if result.signal else 1


def _short(error: BaseException) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    if is_out_of_memory(error):
        return (
            f"out of memory: {first or type(error).__name__}; a smaller trainer.batch_size with a "
            "larger trainer.accumulate gives the same result in less"
        )
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
