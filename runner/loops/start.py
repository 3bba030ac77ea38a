"""Where a training starts: afresh, from weights of another run, or from its newest checkpoint."""

from __future__ import annotations

from runner.job import Job
from runner.loops.told import start_trackers
from runner.loops.warm import starts_warm, warm_start
from runner.state import TrainState, restore, tensors
from runner.step import total_steps


def start(job: Job) -> TrainState:
    """Resumes from the newest whole checkpoint; without one, begins at step 0."""
    if job.checkpointer is not None:
        job.checkpointer.prepare(tensors(job.context, job.train_metrics))
    saved = job.checkpointer.latest() if job.checkpointer else None
    if saved is not None and job.checkpointer is not None:
        state = restore(job, saved)
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
