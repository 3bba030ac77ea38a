"""steps(): a stream of batches becomes a stream of updates. Shared by every loop that learns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from contextlib import closing

from runner.batch import Batch, Cursor
from runner.data.core.dataset import EndOfStream, end_of_epoch
from runner.embeddings.step_counts import updates_before
from runner.training.job import Job, Rates
from runner.training.state import TrainState
from runner.training.stop_signal import Stop
from runner.training.update.prefetch import ready
from runner.training.update.task import StepOutput


def steps(
    job: Job, state: TrainState, stop: Stop | None = None, *, ahead: bool = True
) -> Iterator[StepOutput]:
    """Updates until the end of the run, each already counted in `state` when it is yielded.

    All ranks know then of a signal that any of them has heard before the update's end: `stop`
    needs no exchange of its own.
    Args: ahead: whether the next batches may be on their way beside the one that is learnt from.
    Time spent by the consumer (evaluation, saving) is not counted as active.
    """
    growth, batches = state.growth, training_batches(job, state, ahead)
    ranks = job.context.ranks
    roots = job.context.roots()
    while not finished(job, state):
        started = time.perf_counter()
        if state.growth != growth:  # from the same position on, in larger updates
            batches.close()
            growth, batches = state.growth, training_batches(job, state, ahead)
        state.rates = set_rates(job, state)
        for root in roots:
            if not root.training:  # after an evaluation; train() is slow
                root.train()
        try:
            output = job.task.train_step(job.context, batches)
        except EndOfStream as end:
            job.view.note(str(end))
            return
        job.context.end_update()
        state.step += 1
        state.examples += num_examples(job, state.cursor, output, growth)
        state.cursor = output.cursor
        state.skipped += not output.applied
        if output.applied and job.context.average is not None:
            job.context.average.update(state.step - state.skipped)
        # all ranks go by one clock, since what is due by time they all enter
        active_s = state.active_s + time.perf_counter() - started
        mine = (stop.heard or 0) if stop is not None else 0
        state.active_s, heard = ranks.largest_of([active_s, mine])
        if stop is not None:
            stop.agree(heard)
        yield output


def num_examples(job: Job, before: Cursor, output: StepOutput, growth: int = 1) -> int:
    """Examples of an update on all ranks: what the position in the stream has moved by, without
    rows that were dropped or only fill up a batch."""
    if not job.context.ranks.several and job.dataset.rest != "pad":
        return output.rows_B.numel()
    after, size = output.cursor, rows_of_update(job, growth)
    moved = after.offset
    for epoch in range(before.epoch, after.epoch):
        start = before.offset if epoch == before.epoch else 0
        moved += end_of_epoch(job.dataset, start, size) - start
    return moved - before.offset * (after.epoch == before.epoch)


def finished(job: Job, state: TrainState) -> bool:
    if state.stopped is not None:
        return True
    if job.trainer.max_steps is not None:
        return state.step >= job.trainer.max_steps
    assert job.trainer.max_epochs is not None
    return state.cursor.epoch >= job.trainer.max_epochs


def rows_of_update(job: Job, growth: int = 1) -> int:
    """Of all ranks together, where no epoch ends in it."""
    trainer, world_size = job.trainer, job.context.ranks.world_size
    return trainer.batch_size * trainer.accumulate * world_size * growth


def total_steps(job: Job, state: TrainState) -> int:
    """Updates of the whole run, as they stand now: larger ones make it shorter."""
    if job.trainer.max_steps is not None or state.growth == 1:
        return job.total_steps
    assert job.trainer.max_epochs is not None
    rows = rows_of_update(job, state.growth)
    epochs = job.trainer.max_epochs - state.cursor.epoch
    if epochs <= 0:
        return state.step
    left = updates_of_epoch(job, rows, since=state.cursor.offset)
    return state.step + left + (epochs - 1) * updates_of_epoch(job, rows)


def updates_of_epoch(job: Job, rows: int, *, since: int = 0) -> int:
    """Of so many rows each, from an offset on."""
    return -(-(end_of_epoch(job.dataset, since, rows) - since) // rows)


def schedule_step(job: Job, state: TrainState) -> int:
    """The number that the schedule knows the next update by, from 1.

    A run of epochs whose updates have become larger goes through its schedule by examples, so that
    it neither jumps nor ends early: the number is that of the original update that ends there.
    """
    if job.trainer.max_steps is not None or state.growth == 1:
        return state.step + 1
    rows = rows_of_update(job)
    per_epoch = updates_of_epoch(job, rows)
    end = state.cursor.offset + rows * state.growth
    return state.cursor.epoch * per_epoch + min(-(-end // rows), per_epoch)


def training_batches(job: Job, state: TrainState, ahead: bool) -> Generator[Batch, None, None]:
    """Batches from a position on, epoch after epoch, without end; each makes one update."""
    with closing(ready(job.context, in_order(job, state), ahead=ahead)) as batches:
        yield from batches


def in_order(job: Job, state: TrainState) -> Iterator[Batch]:
    """The same, where the dataset makes them."""
    cursor, growth = state.cursor, state.growth
    for epoch in itertools.count(cursor.epoch):
        yield from job.dataset.batches(
            "train",
            batch_size=job.trainer.batch_size * job.trainer.accumulate * growth,
            seed=job.seed,
            start=cursor if epoch == cursor.epoch else Cursor(epoch, 0),
            rank=job.context.ranks.rank,
            world_size=job.context.ranks.world_size,
        )


def set_rates(job: Job, state: TrainState) -> dict[str, float]:
    """Sets and returns the learning rates of the next update."""
    context = job.context
    rates = {
        name: rate * state.lr_scale
        for name, rate in rates_at(job.rates, schedule_step(job, state)).items()
    }
    for name, optimizer in context.optimizers().items():
        for group in optimizer.param_groups:
            group["lr"] = rates[name]
    for name, tables in context.table_groups.items():
        # skipped updates do not count in Adam's bias correction: the dense half's do not either
        applied = updates_before(tables, context.table_updates) + state.step - state.skipped
        tables.set_rate(rates[name], applied + 1)
    return rates


def rates_at(rates: Rates, update: int) -> dict[str, float]:
    """Learning rates by name at an update, from 1: a pure function of its number."""
    factor = rates.factor(update)
    return {
        name: full * (rates.own[name](update) if name in rates.own else factor)
        for name, full in rates.full.items()
    }
