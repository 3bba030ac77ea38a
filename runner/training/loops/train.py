"""Full training: update, log, evaluate, save, until the end of the run or a signal."""

from __future__ import annotations

import time

from runner.errors import UserError
from runner.rundir.find_checkpoint import find_checkpoint
from runner.training.job import Job, Result
from runner.training.loops.evaluate import evaluate_split
from runner.training.loops.events import Events
from runner.training.loops.plateau_actions import decide
from runner.training.loops.pruning import is_pruned
from runner.training.loops.recorder import Recorder
from runner.training.loops.run_facts import keep_data_facts
from runner.training.loops.session import told
from runner.training.loops.start import start
from runner.training.profiler import profiled
from runner.training.state import TrainState, restore_weights
from runner.training.steps import finished, steps
from runner.training.stop_signal import Stop, stop_on_signals


def train(job: Job) -> Result:
    """Trains to the end of the run, resuming from the run directory if it holds a checkpoint.

    Order at update k: update, log, evaluate, save; an improvement is saved at once.
    """
    return told(job, lambda: _train(job))


def _train(job: Job) -> Result:
    with stop_on_signals() as stop, job.view.training(job.total_steps):
        state = start(job)
        keep_data_facts(job)
        record = Recorder(job, state, Events(job, state, stop))
        record.events.started()
        if state.evaluation_due:
            record.saved_step = -1  # what was saved at this step lacks the evaluation
            evaluate_and_save(job, state, record, stop)
        for output in () if stop.agreed() else profiled(job, steps(job, state, stop)):
            record.update(output)
            if record.log_due() or finished(job, state):
                record.log()
            asked = bool(job.callbacks.by_name)
            if record.evaluation_due() or finished(job, state):
                evaluate_and_save(job, state, record, stop)
                asked = True
            if record.save_due():
                record.save()
            # the ranks agreed at the end of the update; a callback or a sweep may have spoken since
            if stop.agreed() if asked else stop.requested:
                break
        record.save(wait=True)
        record.events.raise_failure()
        if stop.requested and not (finished(job, state) and not state.evaluation_due):
            result = interrupted(job, state, record, stop)
        else:
            result = complete(job, state, record, stop)
        record.events.ended(result)
        return result


def evaluate_and_save(job: Job, state: TrainState, record: Recorder, stop: Stop) -> None:
    """Evaluates the validation split; a signal puts it off until the run is resumed."""
    state.evaluation_due = True
    if "validation" in job.dataset.num_rows:
        metrics = evaluate_split(job, "validation", stop=stop, keep=record.take_pass)
        if metrics is None:
            return
        improved = record.evaluated(metrics)
        decide(job, state, metrics)
    else:
        improved = False
    state.evaluation_due = False
    state.evaluated_step = state.step
    if finished(job, state) and state.logged_step != state.step:
        record.log()  # it stops here by what was evaluated
    if improved:
        record.save()
    if record.validation and not finished(job, state) and is_pruned(job, state.step, stop):
        stop.prune()


def interrupted(job: Job, state: TrainState, record: Recorder, stop: Stop) -> Result:
    """The state is saved; what is evaluated now goes into the result only, so that the resumed
    run equals one that was never interrupted. A pruned one has just been evaluated."""
    if stop.pruned:
        return record.result("pruned", {"validation": record.validation})
    metrics = {}
    if "validation" in job.dataset.num_rows:
        metrics = evaluate_split(job, "validation") or {}
    return record.result("interrupted", {"validation": metrics}, signal=stop.signal)


def complete(job: Job, state: TrainState, record: Recorder, stop: Stop) -> Result:
    """Takes the best weights back and evaluates with them what the loop's `final_splits` names."""
    best = state.best
    step = state.step
    if best is not None and best.step != state.step:
        assert job.run is not None
        try:
            saved = find_checkpoint(job.run.dir, best.step)
        except UserError as error:
            job.view.warn(f"the best weights are gone, the last are used instead: {error}")
            best = None
        else:
            restore_weights(job, saved)
            step = best.step
    results: dict[str, dict[str, float]] = {}
    if best is not None:
        results["validation"] = best.metrics
    elif "validation" in job.dataset.num_rows:
        results["validation"] = evaluate_split(job, "validation") or {}
    for split in job.loop_settings["final_splits"]:
        if split in results or split not in job.dataset.num_rows:
            continue
        started = time.perf_counter()
        metrics = evaluate_split(job, split, stop=stop, keep=record.take_pass)
        if metrics is None:
            return interrupted(job, state, record, stop)
        record.evaluated_at_end(split, step, metrics, time.perf_counter() - started)
        results[split] = metrics
    return record.result("completed", results)
