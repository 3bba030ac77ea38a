"""Where a training starts: afresh, from weights of another run, or from its newest checkpoint."""

from __future__ import annotations

from typing import Any

from runner.config.signature import describe
from runner.errors import ConfigError, UserError
from runner.rundir.checkpoint import DamagedError, Saved
from runner.rundir.json_files import write_json, write_text
from runner.rundir.run import Run
from runner.training.job import Job
from runner.training.loops.session import start_trackers
from runner.training.state import TrainState, restore, tensors
from runner.training.steps import total_steps
from runner.training.warm_start.warm_start import starts_warm, warm_start


def start(job: Job) -> TrainState:
    """Resumes from the newest whole checkpoint; without one, begins at step 0."""
    if job.checkpointer is not None:
        job.checkpointer.prepare(tensors(job.context, job.train_metrics))
    saved = job.checkpointer.latest() if job.checkpointer else None
    if saved is not None and job.checkpointer is not None:
        state = restored(job, saved)
        job.callbacks.load_state(saved.values.get("callbacks", {}))
        job.checkpointer.discard_after(state.step)
        if job.run is not None:
            job.run.metrics.cut(saved.values["metrics_bytes"])
        start_trackers(job, state.step, saved.values["trackers"])
        job.view.note(f"resuming from step {state.step:,} ({state.examples:,} examples)")
        changed = job.run is not None and saved.values["signature"] != job.run.signature
        if state.stopped is not None and changed:  # by other settings it may not have ended
            job.view.note(f"it had stopped ({state.stopped}); it goes on with what was changed")
            state.stopped = None
        if state.growth > 1:
            job.view.lasts(total_steps(job, state))
        return state
    if job.run is not None:
        job.run.metrics.cut(0)
        if job.run.resumed:
            job.view.note("no checkpoint had been written: starting again at step 0")
    start_trackers(job)
    if starts_warm(job.checkpoint):
        job.view.note(warm_start(job))
        if job.context.average is not None:
            job.context.average.restart()
    return TrainState()


def restored(job: Job, saved: Saved) -> TrainState:
    """Raises: ConfigError that names the settings which the checkpoint does not fit any more; they
    are taken back, so that a resume without them goes on."""
    try:
        return restore(job, saved)
    except DamagedError:
        raise
    except UserError as error:
        changes = [] if job.run is None else changed_at_resume(job.run)
        if job.run is None or not changes:
            raise
        told = "settings that this resume changed, and that are taken back"
        reason = f"{error}\n{told}:\n{describe(changes)}"
        take_back(job.run, reason)
        raise ConfigError(reason) from error


def changed_at_resume(run: Run) -> list[tuple[str, Any, Any]]:
    """(key, before, now) of what the resume that goes on here laid on the run."""
    notes = run.meta.get("resumes") or [{}]
    return [(key, before, now) for key, before, now in notes[-1].get("changed", [])]


def take_back(run: Run, reason: str) -> None:
    """What a resume had changed, which the checkpoint does not fit: the run is as it was before,
    but for a note. Of another rank's run nothing is done."""
    if run.replaced is None:
        return
    text, meta = run.replaced
    *earlier, last = run.meta["resumes"]
    write_text(run.dir / "config.yaml", text)
    write_json(run.dir / "meta.json", {**meta, "resumes": [*earlier, {**last, "refused": reason}]})
