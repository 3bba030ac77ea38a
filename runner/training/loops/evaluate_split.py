"""Computes the metrics of one split, during a training or for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice

import torch
from torch import Tensor, nn

from runner.batch import Batch, Prediction
from runner.config.settings.loops import judged_splits
from runner.errors import ConfigError
from runner.machine.memory import release_freed_memory
from runner.metrics.hardest import HardestRows
from runner.metrics.names import evaluation_name
from runner.metrics.protocol import Metrics
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.training.catalogue import attach_slices, open_catalogue
from runner.training.job import Job
from runner.training.loops.recorder import reduce_metrics
from runner.training.stop_signal import GracePeriod, StopSignal
from runner.training.update.context import Context
from runner.training.update.prefetch import batches_on_device
from runner.training.update.task import Supervised, Task

RANKED_BYTES = 1 << 30
_Evaluated = tuple[Batch, Prediction, dict[str, Tensor]]


def evaluate_split(
    job: Job,
    split: str,
    *,
    max_batches: int | None = None,
    stop: StopSignal | GracePeriod | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
    on_notes: Callable[[tuple[str, ...]], None] | None = None,
    hardest: HardestRows | None = None,
) -> dict[str, float] | None:
    """Compute the metrics of a split in file order, with all modules in evaluation mode.

    Collective. Changes nothing of the training: weights, random states and train metrics stay.

    Args:
        max_batches: evaluate so many batches at most. None: the whole split.
        on_metrics: called with the metrics at the end; on rank 0 they hold the rows of all ranks.
        on_notes: called with what must be known of the results, the same on every rank.
        hardest: gets the rows of this rank.

    Returns:
        Metric[/task] -> value; None if `stop` was requested before the end.
    """
    context = job.context
    metrics = job.make_metrics(True)
    context.set_eval_mode()
    ranks = context.ranks
    batches = job.dataset.batches(
        split,
        batch_size=job.trainer.eval_batch_size or job.trainer.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    settings = job.metric_settings
    with (
        context.evaluation_weights(),
        torch.no_grad(),
        open_catalogue(context.model, settings, job.dataset, split),
        closing(batches_on_device(context, islice(batches, max_batches))) as device_batches,
    ):
        for batch, prediction, losses in evaluate_batches(context, job.task, device_batches):
            if stop is not None and stop.sync_ranks():
                return None
            metrics.update(
                attach_slices(
                    prediction, batch, job.dataset.schema, settings.slice_by, context.model
                ),
                losses,
            )
            if hardest is not None:
                hardest.add(batch.rows_B, prediction, losses)
            job.view.advance_evaluation(
                split, batch.size * ranks.world_size, job.dataset.num_rows[split]
            )
    results, notes = reduce_metrics(metrics, ranks)
    if on_metrics is not None:
        on_metrics(metrics)
    if on_notes is not None:
        on_notes(notes)
    for note in notes:
        job.view.note(f"{evaluation_name(split)}: {note}")
    return results


def evaluate_batches(
    context: Context, task: Task, batches: Iterator[Batch]
) -> Iterator[_Evaluated]:
    """Yield each batch with its predictions and losses, in order.

    Collective. Where operations have one thread, the threads of an update have a batch each, which
    changes no number; not where each row is ranked among all items, which takes memory.

    Raises:
        ConfigError: if the task returns something else than predictions and losses.
    """

    @torch.no_grad()  # which holds in one thread
    def evaluate(batch: Batch) -> _Evaluated:
        output = task.eval_step(context, batch)
        match output:
            case (Prediction(), Mapping()):
                return batch, *output
        raise ConfigError(
            f"task: eval_step of {type(task).__name__} returned {type(output).__name__}; it must "
            "return a runner.Prediction and the losses of each row by name, as that of "
            "runner.Supervised does"
        )

    threads = context.row_threads
    if (
        threads is not None
        and type(task) is Supervised
        and not isinstance(context.model, RetrievalModel)
        and not context.ranks.is_distributed  # collectives have one order
        and torch.get_num_threads() == threads.num_threads_within == 1
        and threads.may_run_at_once()
    ):
        return threads.map(evaluate, batches)
    return _release_memory(context.model, map(evaluate, batches))


def _release_memory(model: nn.Module, evaluated: Iterator[_Evaluated]) -> Iterator[_Evaluated]:
    """Yield what is evaluated, and free memory after `RANKED_BYTES` of scores of all items.

    Between the scores of two batches lies what metrics keep of the first, which takes 40 kB of the
    heap for each row, at 200,000 items, that is never used again.
    """
    num_bytes = 0
    for item in evaluated:
        yield item
        batch = item[0]
        if isinstance(model, RetrievalModel) and model.items_ID is not None:
            num_bytes += 4 * batch.size * len(model.items_ID)
        if num_bytes > RANKED_BYTES:
            release_freed_memory()
            num_bytes = 0


def select_splits(job: Job) -> list[str]:
    """Return the splits of `loop.split`; by default test if the dataset has it, else validation.

    Raises:
        ConfigError: if the dataset lacks one of them.
    """
    known = list(job.dataset.num_rows)
    splits = judged_splits(job.loop_settings["split"], known)
    for split in splits:
        if split not in known:
            other = "" if len(known) > 1 else f"; loop.split={known[0]} evaluates that one"
            raise ConfigError(f"loop.split={split}: the dataset has {', '.join(known)}{other}")
    return splits
