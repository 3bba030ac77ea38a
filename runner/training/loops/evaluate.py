"""Evaluation: of a split in the middle of a training, and of a checkpoint as a loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice

import torch

from runner.errors import ConfigError
from runner.metrics.protocol import Metrics
from runner.metrics.settings import MetricSettings
from runner.training.catalogue import catalogue, sliced
from runner.training.job import Job, Result
from runner.training.loops.recorder import measured
from runner.training.loops.run_facts import keep_calibration, keep_data_facts
from runner.training.loops.session import start_trackers, told
from runner.training.state import from_values, restore_weights
from runner.training.stop_signal import Stop, stop_on_signals
from runner.training.update.prefetch import ready


def evaluate_split(
    job: Job,
    split: str,
    *,
    max_batches: int | None = None,
    stop: Stop | None = None,
    keep: Callable[[Metrics], None] | None = None,
) -> dict[str, float] | None:
    """Metrics of a split in file order, with dropout and the like off.

    Collective. Changes nothing of the training: weights, random states and train metrics stay.
    Args: keep: gets what was measured, which on rank 0 holds the rows of all ranks.
    Returns: None if `stop` was requested before the end.
    """
    context = job.context
    metrics = job.metrics(True)
    for root in context.roots():
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
        context.evaluated_weights(),
        torch.no_grad(),
        catalogue(context.model, settings),
        closing(ready(context, islice(batches, max_batches))) as arriving,
    ):
        for batch in arriving:
            if stop is not None and stop.agreed():
                return None
            prediction, losses = job.task.eval_step(context, batch)
            metrics.update(sliced(prediction, batch, job.dataset.schema, settings.slice_by), losses)
            job.view.evaluating(split, batch.size * ranks.world_size, job.dataset.num_rows[split])
    results, notes = measured(metrics, ranks)
    if keep is not None:
        keep(metrics)
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
    return told(job, lambda: _evaluate(job))


def chosen_split(job: Job) -> str:
    """The split asked for; else test if there is one, else validation. Raises: ConfigError."""
    there = list(job.dataset.num_rows)
    split = job.loop_settings["split"] or ("test" if "test" in there else "validation")
    if split not in there:
        raise ConfigError(f"loop.split={split}: the dataset has {', '.join(there)}")
    return split


def _evaluate(job: Job) -> Result:
    assert job.source is not None
    assert job.run is not None
    start_trackers(job)
    keep_data_facts(job)
    restore_weights(job, job.source)
    state = from_values(job.source.values)
    split = chosen_split(job)
    kept: list[Metrics] = []
    with stop_on_signals() as stop, job.view.evaluation(job.dataset.num_rows[split]):
        metrics = evaluate_split(
            job, split, max_batches=job.loop_settings["max_batches"], stop=stop, keep=kept.append
        )
    if metrics is None:
        return Result("interrupted", state.step, state.examples, signal=stop.signal)
    job.run.metrics.append(
        {"split": split, "step": state.step, "examples": state.examples, **metrics}
    )
    job.trackers.log(split, state.step, metrics)
    job.view.evaluated(split, state.step, metrics)
    keep_calibration(job, split, state.step, kept[0])
    flat = {f"{split}/{name}": value for name, value in metrics.items()}
    return Result("completed", state.step, state.examples, metrics=flat)
