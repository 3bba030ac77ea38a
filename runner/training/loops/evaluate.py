"""loop=eval: evaluates a checkpoint, or each new checkpoint of a training under way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runner.metrics.names import evaluation_name
from runner.metrics.protocol import Metrics
from runner.parts import loop_option
from runner.training.job import Job, Result
from runner.training.loops.evaluate_split import evaluate_split, select_splits
from runner.training.loops.events import write_metrics_row
from runner.training.loops.follow import follow
from runner.training.loops.run_facts import (
    hardest_rows,
    write_calibration,
    write_data_facts,
    write_hardest,
)
from runner.training.loops.session import run_and_report, start_trackers
from runner.training.loops.verdict import not_finite_loss, undefined_results
from runner.training.state import TrainState, restore_weights, train_state_from_values
from runner.training.stop_signal import StopSignal


@loop_option
def evaluate(job: Job) -> Result:
    """Evaluate splits with the weights of one checkpoint; the source is only read.

    With `loop.follow`, evaluate all checkpoints of a training as they come (`follow.py`).
    """
    if job.loop_settings["follow"]:
        return follow(job)
    return run_and_report(job, lambda stop: _evaluate(job, stop))


def _evaluate(job: Job, stop: StopSignal) -> Result:
    assert job.source_checkpoint is not None
    assert job.run is not None
    job.run.metrics.truncate(0)  # an interrupted evaluation begins again
    start_trackers(job)
    write_data_facts(job)
    restore_weights(job.context, job.source_checkpoint)
    state = train_state_from_values(job.source_checkpoint.values)
    splits = select_splits(job)
    by_split: dict[str, dict[str, float]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for split in splits:
        keep = partial(notes.__setitem__, evaluation_name(split))
        metrics = _evaluate_one(job, split, state, stop, keep)
        if metrics is None:
            return Result("interrupted", state.step, state.examples, signal=stop.signal)
        by_split[evaluation_name(split)] = metrics
    flat = {f"{split}/{name}": v for split, row in by_split.items() for name, v in row.items()}
    failure = not_finite_loss(by_split, notes)
    status = "failed" if failure else "completed"
    undefined = undefined_results(flat, notes)
    more = {"undefined": undefined} if undefined else {}
    return Result(status, state.step, state.examples, metrics=flat, error=failure, notes=more)


def _evaluate_one(
    job: Job,
    split: str,
    state: TrainState,
    stop: StopSignal,
    on_notes: Callable[[tuple[str, ...]], None],
) -> dict[str, float] | None:
    """Evaluate a split and write its row; None after a signal. Collective."""
    assert job.run is not None
    measured: list[Metrics] = []
    hardest = hardest_rows(job)
    if job.loop_settings["max_batches"] is None and job.dataset.num_rows[split]:
        job.view.note(f"evaluating the {job.dataset.num_rows[split]:,} rows of the {split} split")
    with job.view.evaluation(job.dataset.num_rows[split]):
        metrics = evaluate_split(
            job,
            split,
            max_batches=job.loop_settings["max_batches"],
            stop=stop,
            on_metrics=measured.append,
            on_notes=on_notes,
            hardest=hardest,
        )
    if metrics is not None:
        name = evaluation_name(split)
        write_metrics_row(job, name, state.step, state.examples, metrics)
        job.view.log_evaluation(name, state.step, metrics)
        write_calibration(job, name, state.step, measured[0])
        write_hardest(job, name, state.step, hardest)
    return metrics
