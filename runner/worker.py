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

from runner.config.compose import ComposedConfig
from runner.distributed.launcher import ProcessResult
from runner.distributed.torchrun import ignore_sigterm
from runner.distributed.world_size import launched_rank, launched_world_size
from runner.errors import UserError
from runner.machine import is_out_of_memory
from runner.rundir.run import Run, read_only_run, write_result


def run_job(composed: ComposedConfig, run: Run | None, allowed: Sequence[str]) -> ProcessResult:
    """Collective, where ranks were started. The job from its parts to its result.

    Args: run: on ranks other than 0 one that another process has opened, or None if only rank 0
    knows it.
    """
    try:
        from runner.reporting.console import View
        from runner.training.builder import build_job

        is_chief, started = launched_rank() == 0, launched_world_size() is not None
        if started:
            run = _broadcast_run(run, _join_process_group(composed))
        with nullcontext() if is_chief else redirect_to_log(run.dir if run else None):
            view = View() if is_chief else View(open(os.devnull, "w"))  # noqa: SIM115
            job = build_job(composed.config, run, view=view, allowed=allowed, name=composed.name)
            result = job.loop(job)
        if started:
            ignore_sigterm()  # another rank may fail at its end, and this one has a result
        if run is not None and is_chief:
            values = {k: v for k, v in vars(result).items() if k != "notes"}
            write_result(run, {**values, **result.notes})
        if started:
            _leave_process_group()
    except _ReleasedError as told:
        return ProcessResult(told.code, "dismissed")
    except UserError as error:
        return ProcessResult(2, "refused", str(error), traceback.format_exc())
    except KeyboardInterrupt:
        return ProcessResult(130, "interrupted", "interrupted before it had begun")
    except Exception as error:
        return ProcessResult(1, "failed", _short(error), traceback.format_exc())
    code = exit_code(result)
    return ProcessResult(code, "failed" if code == 1 else result.status)


class _ReleasedError(Exception):
    """Rank 0 has no job for the others: it is done already, or cannot be."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def _broadcast_run(run: Run | None, ranks: Any) -> Run | None:
    """Collective. The open run directory, of which torchrun's ranks know only on rank 0."""
    told = ranks.broadcast_object(None if run is None else (run.dir, run.signature, dict(run.meta)))
    if ranks.is_main or not ranks.is_distributed:
        return run
    if isinstance(told, int):
        raise _ReleasedError(told)
    return None if told is None else read_only_run(*told)


def release_ranks(composed: ComposedConfig, code: int) -> None:
    """Ends the ranks that torchrun has started beside this one and that wait for a run."""
    if (launched_world_size() or 1) == 1:
        return
    _join_process_group(composed).broadcast_object(code)
    _leave_process_group()


def _join_process_group(composed: ComposedConfig) -> Any:
    """Collective. The ranks that were started with this process."""
    from runner.config.settings import TrainerSettings, make_settings
    from runner.training.builder import join_ranks

    return join_ranks(make_settings(TrainerSettings, composed.config["trainer"]))


def _leave_process_group() -> None:
    from runner.distributed.process_group import leave_process_group

    leave_process_group()


@contextmanager
def redirect_to_log(folder: Path | None) -> Iterator[None]:
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
