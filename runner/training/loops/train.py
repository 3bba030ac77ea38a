"""loop=train: updates, logs, evaluates and saves until the end of the run or a signal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from runner.errors import UserError
from runner.metrics.names import evaluation_name
from runner.parts import loop_option
from runner.rundir.find_checkpoint import find_checkpoint
from runner.training.health.compare import compare_with_yardstick, measure_features
from runner.training.job import Job, Result
from runner.training.loops.evaluate_split import evaluate_split
from runner.training.loops.plateau_actions import apply_plateau_rules
from runner.training.loops.pruning import should_prune
from runner.training.loops.recorder import Recorder
from runner.training.loops.run_facts import hardest_rows, write_data_facts, write_hardest
from runner.training.loops.session import run_and_report
from runner.training.loops.start import start_training
from runner.training.loops.verdict import failure_at_end, skipped_in_a_row, why_no_best
from runner.training.profiler import profile_steps
from runner.training.state import BestEvaluation, TrainState, restore_weights
from runner.training.steps import is_finished, steps
from runner.training.stop_signal import GracePeriod, StopSignal


@loop_option
def train(job: Job) -> Result:
    """Train to the end of the run, resuming from the run directory if it holds a checkpoint.

    Order at update k: update, log, evaluate, save; an improvement is saved at once.
    """
    return run_and_report(job, lambda stop: _train(job, stop))


def _train(job: Job, stop: StopSignal) -> Result:
    with job.view.training(job.total_steps):
        state = start_training(job)
        write_data_facts(job)
        recorder = Recorder(job, state, stop)
        recorder.start()
        if state.evaluation_due:
            evaluate_and_save(job, state, recorder, stop)
        elif state.validation_step == state.step:  # a signal may have come before the answer
            _ask_whether_to_go_on(job, state, stop)
        updates = steps(job, state, stop, before_update=recorder.callback_runner.call_update_start)
        for output in () if stop.sync_ranks() else profile_steps(job, updates):
            recorder.record_update(output)
            del output
            if recorder.due(job.cadence.log_every) or is_finished(job, state):
                recorder.log()
            # since the ranks agreed at the end of the update, a callback or a sweep may have asked
            may_stop = job.callbacks.exist_on_any_rank
            if recorder.due(job.cadence.eval_every) or is_finished(job, state):
                evaluate_and_save(job, state, recorder, stop)
                may_stop = True
            if recorder.save_due():
                recorder.save()
            if skipped_in_a_row(job, state) or (stop.sync_ranks() if may_stop else stop.requested):
                break
        return finish_training(job, state, recorder, stop)


def finish_training(job: Job, state: TrainState, recorder: Recorder, stop: StopSignal) -> Result:
    """Save the last update, evaluate the best weights of a completed run, and return the result.

    Collective.
    """
    recorder.save(wait=True)
    recorder.finish_delivery(interrupted=stop.requested)
    recorder.callback_runner.raise_failure()
    if failure := skipped_in_a_row(job, state):
        result = recorder.make_result("failed", {}, error=failure)
    elif stop.requested and not (is_finished(job, state) and not state.evaluation_due):
        result = finish_interrupted(job, state, recorder, stop)
    else:
        result = finish_completed(job, state, recorder, stop)
    recorder.callback_runner.call_run_end(result)
    return result


def evaluate_and_save(job: Job, state: TrainState, recorder: Recorder, stop: StopSignal) -> None:
    """Evaluate `trainer.eval_splits`; a signal postpones it until the run is resumed.

    Collective. An improvement is saved at once.
    """
    if state.evaluation_due:  # the checkpoint of this step lacks its evaluation
        recorder.saved_step = -1
    state.evaluation_due = True
    results: dict[str, dict[str, float]] = {}
    hardest = hardest_rows(job)
    for split in [s for s in job.trainer.eval_splits if s in job.dataset.num_rows]:
        recorder.callback_runner.call("on_evaluation_start", evaluation_name(split))
        hold = recorder.hold_metrics if split == "validation" else None
        keep = partial(state.notes.__setitem__, evaluation_name(split))
        metrics = evaluate_split(
            job,
            split,
            stop=stop,
            on_metrics=hold,
            on_notes=keep,
            hardest=hardest if split == "validation" else None,
        )
        if metrics is None:
            return
        results[evaluation_name(split)] = metrics
    improved = recorder.record_evaluation(results)
    if improved:
        write_hardest(job, "validation", state.step, hardest)
    if results:
        apply_plateau_rules(job, state, results)
    state.evaluation_due = False
    if is_finished(job, state) and state.logged_step != state.step > 0:  # 0: nothing to log yet
        recorder.log()  # the evaluation has ended the run
    if improved:
        recorder.save()
    _ask_whether_to_go_on(job, state, stop)


def _ask_whether_to_go_on(job: Job, state: TrainState, stop: StopSignal) -> None:
    """Ask the sweep of this run, if any, whether to stop after an evaluation."""
    if (
        state.validation_metrics
        and not is_finished(job, state)
        and should_prune(job, state.step, stop)
    ):
        stop.prune()


def finish_interrupted(job: Job, state: TrainState, recorder: Recorder, stop: StopSignal) -> Result:
    """Return the result of an interrupted or pruned run, whose state is saved already.

    Its validation is the best, as in the result of a completed run. A run that has no best yet is
    evaluated; the metrics go into the result only, so that the resumed run equals one that was
    never interrupted.
    """
    best = state.best
    evaluated_step = None if best is None else best.step
    results: dict[str, Mapping[str, float]] = {}
    if best is not None:
        results["validation"] = best.metrics
    elif stop.pruned:
        results["validation"] = state.validation_metrics  # it has just been evaluated
    if stop.pruned:
        return recorder.make_result("pruned", results, evaluated_step=evaluated_step)
    if best is None and "validation" in job.dataset.num_rows:
        limit_s = job.trainer.stop_grace_s
        metrics = evaluate_split(job, "validation", stop=GracePeriod(stop, limit_s))
        if metrics is None:
            saved = "the run is saved; " * (job.checkpointer is not None)
            job.view.note(
                f"{saved}its evaluation is left out, since it has not ended within {limit_s:g} s "
                "of the signal (trainer.stop_grace_s)"
            )
        results["validation"] = metrics or {}
    return recorder.make_result(
        "interrupted", results, signal=stop.signal, evaluated_step=evaluated_step
    )


def finish_completed(job: Job, state: TrainState, recorder: Recorder, stop: StopSignal) -> Result:
    """Restore the best weights, and evaluate the loop's `final_splits` with them."""
    best, step = _restore_best(job, state)
    results: dict[str, Mapping[str, float]] = {}
    if best is not None:
        results["validation"] = best.metrics
    elif state.validation_step == step:  # evaluated and written already
        results["validation"] = state.validation_metrics
    for split in ("validation", *job.loop_settings.get("final_splits", ["test"])):
        name = evaluation_name(split)
        if name in results or split not in job.dataset.num_rows:
            continue
        metrics = _evaluate_at_end(job, split, step, recorder, stop)
        if metrics is None:
            return finish_interrupted(job, state, recorder, stop)
        results[name] = metrics
    measured = results or {recorder.split: state.train_metrics}
    failure = failure_at_end(job, state, measured, state.notes)
    result = recorder.make_result(
        "failed" if failure else "completed", results, error=failure, evaluated_step=step
    )
    if why := why_no_best(job, state, result.metrics, result.notes.get("undefined", ())):
        result.notes["no_best"] = why
    compare_with_yardstick(job, state, result)
    if features := measure_features(job):
        write_data_facts(job, features)
    return result


def _restore_best(job: Job, state: TrainState) -> tuple[BestEvaluation | None, int]:
    """Restore the weights of the best evaluation; the last stay where its checkpoint is not there.

    Returns:
        The best evaluation, None if the last weights stay in its place, and the step of the
        weights.
    """
    best = state.best
    if best is None or best.step == state.step:
        return best, state.step
    if job.checkpointer is None:  # nothing is saved, of which the run has warned
        return None, state.step
    assert job.run is not None
    try:
        saved = find_checkpoint(job.run.dir, best.step)
    except UserError as error:
        job.view.warn(f"the best weights are gone, the last are used instead: {error}")
        return None, state.step
    restore_weights(job.context, saved)
    return best, best.step


def _evaluate_at_end(
    job: Job, split: str, step: int, recorder: Recorder, stop: StopSignal
) -> dict[str, float] | None:
    """Evaluate a split with the weights of a step and write its row; None after a signal."""
    name = evaluation_name(split)
    started = time.perf_counter()
    recorder.callback_runner.call("on_evaluation_start", name)
    hardest = hardest_rows(job)
    metrics = evaluate_split(
        job,
        split,
        stop=stop,
        on_metrics=recorder.hold_metrics,
        on_notes=partial(recorder.state.notes.__setitem__, name),
        hardest=hardest,
    )
    if metrics is not None:
        write_hardest(job, name, step, hardest)
        recorder.record_final_evaluation(name, step, metrics, time.perf_counter() - started)
    return metrics
