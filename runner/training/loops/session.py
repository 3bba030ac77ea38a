"""Starts the trackers of a loop, and reports its end to them and to people."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from runner.training.job import Job, Result
from runner.training.stop_signal import StopSignal, stop_on_signals


def start_trackers(job: Job, step: int = 0, state: Mapping[str, Any] | None = None) -> None:
    """Start the trackers of a run.

    Args:
        step: of the checkpoint that the run continues.
        state: of the trackers, from that checkpoint.
    """
    if job.run is None:
        return
    sweep = os.environ.get("RUNNER_SWEEP")  # set by the sweep for its jobs
    job.trackers.start(
        {
            "name": job.run.name,
            "dir": job.run.dir,
            "config": job.run.config,
            "group": sweep,
            "job_type": "sweep" if sweep else str(job.run.meta["kind"]),
            "step": step,
        },
        state,
    )


def run_and_report(job: Job, loop: Callable[[StopSignal], Result]) -> Result:
    """Run a loop, end its trackers whatever happens, and show its result.

    A signal that comes when the loop has ended changes its result no more: trackers may take long.
    """
    with stop_on_signals() as stop:
        try:
            result = loop(stop)
        except BaseException:
            job.trackers.finish("failed")
            raise
        job.trackers.finish(result.status)
        _show_result(job, result)
    return result


def _show_result(job: Job, result: Result) -> None:
    no_best = filter(None, [result.notes.get("no_best")])
    job.view.show_result(
        result.metrics,
        status=result.status,
        step=result.step,
        active_s=result.notes.get("active_s"),
        best=result.best,
        evaluated_step=result.notes.get("evaluated_step"),
        reachable=job.dataset.reachable,
        yardstick=result.notes.get("yardstick"),
        remarks=[*result.notes.get("undefined", ()), *no_best],
        directory=job.run.dir if job.run else None,
    )
    for finding in result.notes.get("findings", ()):
        job.view.note(f"finding: {finding}")
    if below := result.notes.get("yardstick", {}).get("below"):
        job.view.warn(below)
    if result.error is not None:
        job.view.warn(f"failed: {result.error}")
