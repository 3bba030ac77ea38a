"""Starts a training: afresh, from the weights of another run, or from its newest checkpoint."""

from __future__ import annotations

from typing import Any

from runner.errors import ConfigError, UserError
from runner.rundir.checkpoint import Checkpoint, DamagedError, saved_steps
from runner.rundir.diff import format_changes
from runner.rundir.identity import check_chain, check_owner, run_identity
from runner.rundir.readers import last_row
from runner.rundir.run import Run, revert_resume
from runner.training.job import Job
from runner.training.loops.changed_metrics import (
    follow_changed_metrics,
    replace_best_without_averages,
)
from runner.training.loops.run_facts import write_warm_start
from runner.training.loops.session import start_trackers
from runner.training.state import (
    TrainState,
    checkpoint_tensors,
    restore_checkpoint,
    starts_optimizers_afresh,
)
from runner.training.steps import current_total_steps
from runner.training.warm_start.warm_start import wants_warm_start, warm_start


def start_training(job: Job) -> TrainState:
    """Resume from the newest whole checkpoint, or begin at step 0 if there is none."""
    state = _resume_or_begin(job)
    if job.run is not None and job.run.before_resume is not None:
        job.run.before_resume.is_kept = False  # what comes now belongs to the run
    return state


def _resume_or_begin(job: Job) -> TrainState:
    if job.delivery is not None:
        job.delivery.start(job)
    if job.checkpointer is not None:
        job.checkpointer.prepare(checkpoint_tensors(job.context, job.train_metrics))
    saved = open_own_checkpoint(job)
    if saved is not None and job.checkpointer is not None:
        check_metrics(job, saved)
        state = restore_or_revert(job, saved)
        job.callbacks.load_state(saved.values.get("callbacks", {}))
        job.checkpointer.remove_after(state.step)
        if job.run is not None:
            job.run.metrics.truncate(saved.values["metrics_bytes"])
        start_trackers(job, state.step, saved.values["trackers"])
        fresh = ", without the optimizers' states" if starts_optimizers_afresh(job) else ""
        job.view.note(f"resuming from step {state.step:,} ({state.examples:,} examples){fresh}")
        changed = job.run is not None and saved.values["signature"] != job.run.signature
        if changed:  # other settings may evaluate the same weights in another way
            state.validation_step = -1
        if state.stopped is not None and changed:  # other settings may not have stopped it
            job.view.note(f"it had stopped ({state.stopped}); it goes on with the changed settings")
            state.stopped = None
        follow_changed_metrics(job, saved, state)
        replace_best_without_averages(job, state)
        if state.batch_multiplier > 1:
            job.view.set_total_steps(current_total_steps(job, state))
        return state
    if job.run is not None:
        check_unsaved(job, job.run)
        reached = last_row(job.run.metrics.path).get("step")
        job.run.metrics.truncate(0)
        if job.run.resumed and reached:  # it was killed before the first one, or they are gone
            job.view.warn(
                f"there is no checkpoint, though the run had come to step {reached} at least: "
                "starting again at step 0"
            )
        elif job.run.resumed:
            job.view.note("there is no checkpoint: starting again at step 0")
    start_trackers(job)
    start_weights(job)
    # weights that were learnt may stay the best
    is_learnt = job.checkpoint.init_linear or wants_warm_start(job.checkpoint)
    return TrainState(evaluation_due=is_learnt)


def start_weights(job: Job) -> None:
    """Give a new run the weights of other runs, or of a regression, if its settings ask for them.

    Raises:
        ConfigError: for a source or a model that does not allow it.
    """
    if wants_warm_start(job.checkpoint):
        report = warm_start(job)
        job.view.note(report)
        write_warm_start(job, report)
    if job.checkpoint.init_linear:
        from runner.training.warm_start.linear_start import start_linear  # imports SciPy

        job.view.note(start_linear(job))
    if job.context.ema is not None:  # it begins at the weights that the run begins with
        job.context.ema.reset()


def check_unsaved(job: Job, run: Run) -> None:
    """Show the consequences if the run saves no checkpoints.

    Raises:
        UserError: if the run has checkpoints, from which it would not continue.
    """
    if job.checkpointer is not None:
        return
    if steps := saved_steps(run.dir / "checkpoints"):
        reason = (
            f"checkpoint.keep=0: {run.dir} has a checkpoint of step {steps[-1]:,}, and would start "
            "again at step 0 beside it; with checkpoint.keep=1 it goes on from there"
        )
        revert_resume(run, reason)
        raise UserError(reason)
    job.view.note(
        "checkpoint.keep=0: nothing is saved: a resume starts again at step 0, and the evaluation "
        "at the end is of the last weights"
    )


def open_own_checkpoint(job: Job) -> Checkpoint | None:
    """Open the newest whole checkpoint of the run, if there is one.

    Collective.

    Raises:
        UserError: for a whole checkpoint of another run; the resume is then reverted.
    """
    if job.checkpointer is None or job.run is None:
        return None
    run, identity = job.run, run_identity(job.run.meta)

    def check(saved: Checkpoint) -> None:
        try:
            check_owner(saved, identity)
            check_chain(saved)
        except UserError as error:
            revert_resume(run, str(error))
            raise

    return job.checkpointer.open_latest(check)


def check_metrics(job: Job, saved: Checkpoint) -> None:
    """Check that `metrics.jsonl` still begins with the rows that the checkpoint has seen.

    Collective.

    Raises:
        UserError: if it does not and the command does not allow that; the resume is reverted.
    """
    if job.run is None:
        return
    size_and_digest = saved.values["metrics_bytes"], saved.values.get("metrics_sha256")
    damage = job.context.ranks.broadcast_object(job.run.metrics.find_damage(*size_and_digest))
    if damage is None:
        return
    if job.checkpoint.accept_damaged_metrics:
        job.view.warn(f"{damage}; accepted: the rows that are left in them are kept")
        return
    reason = (
        f"{damage}, at step {saved.step:,}. The weights are whole; with "
        "checkpoint.accept_damaged_metrics=true the run goes on with the rows that are left"
    )
    revert_resume(job.run, reason)
    raise UserError(reason)


def restore_or_revert(job: Job, saved: Checkpoint) -> TrainState:
    """Restore the checkpoint; if changed settings do not fit it, revert them.

    A later resume without these settings then works.

    Raises:
        ConfigError: if settings that this resume changed do not fit the checkpoint; names them.
        DamagedError: if the checkpoint is damaged.
        UserError: if it cannot be restored although no setting was changed.
    """
    try:
        return restore_checkpoint(job, saved)
    except DamagedError:
        raise
    except UserError as error:
        changes = [] if job.run is None else list_resume_changes(job.run)
        if job.run is None or not changes:
            raise
        heading = "settings that this resume changed, now taken back"
        if any(key.startswith("optimizer.") for key, _, _ in changes):
            heading = (
                "checkpoint.optimizer_state=fresh goes on without the states of the optimizers; "
                + heading
            )
        reason = f"{error}\n{heading}:\n{format_changes(changes)}"
        revert_resume(job.run, reason)
        raise ConfigError(reason) from error


def list_resume_changes(run: Run) -> list[tuple[str, Any, Any]]:
    """Return (key, before, now) of the settings that the present resume has changed."""
    resumes = run.meta.get("resumes") or [{}]
    return [(key, before, now) for key, before, now in resumes[-1].get("changed", [])]
