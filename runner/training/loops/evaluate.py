"""loop=eval: evaluates a checkpoint, or each new checkpoint of a training under way."""

from __future__ import annotations

from runner.metrics.protocol import Metrics
from runner.metrics.settings import evaluation_name
from runner.parts import loop_option
from runner.training.job import Job, Result
from runner.training.loops.evaluate_split import evaluate_split, select_split
from runner.training.loops.follow import follow
from runner.training.loops.run_facts import write_calibration, write_data_facts
from runner.training.loops.session import run_and_report, start_trackers
from runner.training.loops.verdict import not_finite_loss
from runner.training.state import restore_weights, train_state_from_values
from runner.training.stop_signal import stop_on_signals


@loop_option
def evaluate(job: Job) -> Result:
    """Evaluate one split with the weights of one checkpoint; the source is only read.

    With `loop.follow`, evaluate all checkpoints of a training as they come (`follow.py`).
    """
    if job.loop_settings["follow"]:
        return follow(job)
    return run_and_report(job, lambda: _evaluate(job))


def _evaluate(job: Job) -> Result:
    assert job.source_checkpoint is not None
    assert job.run is not None
    start_trackers(job)
    write_data_facts(job)
    restore_weights(job, job.source_checkpoint)
    state = train_state_from_values(job.source_checkpoint.values)
    split = select_split(job)
    measured: list[Metrics] = []
    with stop_on_signals() as stop, job.view.evaluation(job.dataset.num_rows[split]):
        metrics = evaluate_split(
            job,
            split,
            max_batches=job.loop_settings["max_batches"],
            stop=stop,
            on_metrics=measured.append,
        )
    if metrics is None:
        return Result("interrupted", state.step, state.examples, signal=stop.signal)
    name = evaluation_name(split)
    job.run.metrics.append(
        {"split": name, "step": state.step, "examples": state.examples, **metrics}
    )
    job.trackers.log(name, state.step, metrics)
    job.view.log_evaluation(name, state.step, metrics)
    write_calibration(job, name, state.step, measured[0])
    flat = {f"{name}/{metric}": value for metric, value in metrics.items()}
    failure = not_finite_loss({name: metrics})
    status = "failed" if failure else "completed"
    return Result(status, state.step, state.examples, metrics=flat, error=failure)
