"""Evaluation: of a split in the middle of a training, and of a checkpoint as a loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice

import torch

from runner.errors import ConfigError
from runner.metrics.protocol import Metrics
from runner.metrics.settings import MetricSettings
from runner.training.catalogue import attach_slices, open_catalogue
from runner.training.job import Job, Result
from runner.training.loops.recorder import reduce_metrics
from runner.training.loops.run_facts import write_calibration, write_data_facts
from runner.training.loops.session import run_and_report, start_trackers
from runner.training.state import restore_weights, train_state_from_values
from runner.training.stop_signal import StopSignal, stop_on_signals
from runner.training.update.prefetch import batches_on_device


def evaluate_split(
    job: Job,
    split: str,
    *,
    max_batches: int | None = None,
    stop: StopSignal | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
) -> dict[str, float] | None:
    """Metrics of a split in file order, with dropout and the like off.

    Collective. Changes nothing of the training: weights, random states and train metrics stay.
    Args: on_metrics: gets what was measured, which on rank 0 holds the rows of all ranks.
    Returns: None if `stop` was requested before the end.
    """
    context = job.context
    metrics = job.make_metrics(True)
    for root in context.root_modules():
        root.eval()
    ranks = context.ranks
    batches = job.dataset.batches(
        split,
        batch_size=job.trainer.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    settings = MetricSettings(**job.config["metrics"])
    with (
        context.evaluation_weights(),
        torch.no_grad(),
        open_catalogue(context.model, settings),
        closing(batches_on_device(context, islice(batches, max_batches))) as arriving,
    ):
        for batch in arriving:
            if stop is not None and stop.sync_ranks():
                return None
            prediction, losses = job.task.eval_step(context, batch)
            metrics.update(
                attach_slices(prediction, batch, job.dataset.schema, settings.slice_by), losses
            )
            job.view.advance_evaluation(
                split, batch.size * ranks.world_size, job.dataset.num_rows[split]
            )
    results, notes = reduce_metrics(metrics, ranks)
    if on_metrics is not None:
        on_metrics(metrics)
    for note in notes:
        job.view.note(f"{split}: {note}")
    return results


def evaluate(job: Job) -> Result:
    """loop=eval: one split with the weights of one checkpoint; the source is only read.

    With `loop.follow`: of all checkpoints of a training, as they come (`follow.py`).
    """
    if job.loop_settings["follow"]:
        from runner.training.loops.follow import follow  # it evaluates with what is defined here

        return follow(job)
    return run_and_report(job, lambda: _evaluate(job))


def select_split(job: Job) -> str:
    """The split asked for; else test if there is one, else validation. Raises: ConfigError."""
    there = list(job.dataset.num_rows)
    split = job.loop_settings["split"] or ("test" if "test" in there else "validation")
    if split not in there:
        raise ConfigError(f"loop.split={split}: the dataset has {', '.join(there)}")
    return split


def _evaluate(job: Job) -> Result:
    assert job.source_checkpoint is not None
    assert job.run is not None
    start_trackers(job)
    write_data_facts(job)
    restore_weights(job, job.source_checkpoint)
    state = train_state_from_values(job.source_checkpoint.values)
    split = select_split(job)
    kept: list[Metrics] = []
    with stop_on_signals() as stop, job.view.evaluation(job.dataset.num_rows[split]):
        metrics = evaluate_split(
            job,
            split,
            max_batches=job.loop_settings["max_batches"],
            stop=stop,
            on_metrics=kept.append,
        )
    if metrics is None:
        return Result("interrupted", state.step, state.examples, signal=stop.signal)
    job.run.metrics.append(
        {"split": split, "step": state.step, "examples": state.examples, **metrics}
    )
    job.trackers.log(split, state.step, metrics)
    job.view.log_evaluation(split, state.step, metrics)
    write_calibration(job, split, state.step, kept[0])
    flat = {f"{split}/{name}": value for name, value in metrics.items()}
    return Result("completed", state.step, state.examples, metrics=flat)
