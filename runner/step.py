"""steps(): a stream of batches becomes a stream of updates. Shared by every loop that learns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from runner.batch import Batch, Cursor
from runner.data.end import EndOfStream
from runner.job import Job
from runner.state import TrainState
from runner.task import StepOutput


def steps(job: Job, state: TrainState) -> Iterator[StepOutput]:
    """Updates until the end of the run, each already counted in `state` when it is yielded.

    Time spent by the consumer (evaluation, saving) is not counted as active.
    """
    batches = training_batches(job, state.cursor)
    ranks = job.context.ranks
    modules = list(job.context.model.modules())
    while not finished(job, state):
        started = time.perf_counter()
        set_rates(job, state)
        if not all(module.training for module in modules):  # after an evaluation; train() is slow
            job.context.model.train()
        try:
            output = job.task.train_step(job.context, batches)
        except EndOfStream as end:
            job.view.note(str(end))
            return
        state.step += 1
        state.examples += num_examples(job, state.cursor, output)
        state.cursor = output.cursor
        state.skipped += not output.applied
        # all ranks go by one clock, since what is due by time they all enter
        state.active_s = ranks.largest(state.active_s + time.perf_counter() - started)
        yield output


def num_examples(job: Job, before: Cursor, output: StepOutput) -> int:
    """Examples of an update on all ranks: what the position in the stream has moved by."""
    if not job.context.ranks.several:
        return output.rows_B.numel()
    after = output.cursor
    epochs = after.epoch - before.epoch
    return epochs * job.dataset.num_rows["train"] + after.offset - before.offset


def finished(job: Job, state: TrainState) -> bool:
    if job.trainer.max_steps is not None:
        return state.step >= job.trainer.max_steps
    assert job.trainer.max_epochs is not None
    return state.cursor.epoch >= job.trainer.max_epochs


def training_batches(job: Job, cursor: Cursor) -> Iterator[Batch]:
    """Batches from a position on, epoch after epoch, without end; each makes one update."""
    for epoch in itertools.count(cursor.epoch):
        start = cursor if epoch == cursor.epoch else Cursor(epoch, 0)
        batches = job.dataset.batches(
            "train",
            batch_size=job.trainer.batch_size * job.trainer.accumulate,
            seed=job.seed,
            start=start,
            rank=job.context.ranks.rank,
            world_size=job.context.ranks.world_size,
        )
        for batch in batches:
            yield batch.to(job.device, non_blocking=True) if job.device.type != "cpu" else batch


def set_rates(job: Job, state: TrainState) -> dict[str, float]:
    """Sets and returns the learning rates of the next update."""
    factor = job.rates.factor(state.step + 1)
    rates = {name: full * factor for name, full in job.rates.full.items()}
    for group in job.context.dense_optimizer.param_groups:
        group["lr"] = rates["dense"]
    # skipped updates do not count in Adam's bias correction: the dense half's do not either
    job.context.tables.set_rate(rates["sparse"], state.step - state.skipped + 1)
    return rates
