"""Makes the batches of all epochs of a training, one for each update."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator

from runner.batch import Batch, DataPosition, blank_uncounted_rows
from runner.data.core.dataset import EndOfStream, unwrapped
from runner.data.core.dataset_check import (
    check_epoch,
    check_first_batch,
    find_batch_problems,
    is_of_ones_own,
    is_stream,
)
from runner.distributed.global_batch import rank_batch_size
from runner.distributed.ranks import Ranks
from runner.errors import DataError
from runner.training.job import Job
from runner.training.state import TrainState
from runner.training.update.prefetch import batches_on_device


def training_batches(
    job: Job, state: TrainState, allow_prefetch: bool
) -> Generator[Batch, None, None]:
    """Return the batches from the position of `state` on, one for each update, without end."""
    # ids get their rows when their update begins
    allow_prefetch = allow_prefetch and job.context.growing is None
    batches = dataset_batches(job, state)
    return batches_on_device(job.context, batches, allow_prefetch=allow_prefetch)


def dataset_batches(job: Job, state: TrainState) -> Iterator[Batch]:
    """Yield the batches as the dataset makes them, before any pipeline moves them to the device."""
    cursor, world_size = state.cursor, job.context.ranks.world_size
    batch_size = _batch_size(job, state)
    for epoch in itertools.count(cursor.epoch):
        start = cursor if epoch == cursor.epoch else DataPosition(epoch, 0)
        batches = _epoch_batches(job, batch_size, start)
        if is_of_ones_own(job.dataset):
            batches = (
                check_first_batch(batches, job.dataset.schema, batch_size)
                if is_stream(job.dataset)
                else check_epoch(batches, job.dataset, start, batch_size, world_size)
            )
        if is_of_ones_own(unwrapped(job.dataset)):
            batches = map(blank_uncounted_rows, batches)
        if is_stream(job.dataset) and job.context.ranks.is_distributed:
            batches = agree_on_end(batches, job.context.ranks)
        yield from batches


def _batch_size(job: Job, state: TrainState) -> int:
    """Return the rows of an update on this rank."""
    trainer = job.trainer
    return rank_batch_size(trainer.batch_size, trainer.accumulate, state.batch_multiplier)


def _epoch_batches(job: Job, batch_size: int, start: DataPosition) -> Iterator[Batch]:
    batches = job.dataset.batches(
        "train",
        batch_size=batch_size,
        seed=job.seed,
        start=start,
        rank=job.context.ranks.rank,
        world_size=job.context.ranks.world_size,
        **({} if job.context.growing is None else {"grow": True}),
    )
    return iter(batches)  # a user's dataset may be a loader, which would start from the beginning


def check_failed_batch(job: Job, state: TrainState, error: Exception) -> None:
    """Check the batch of an update that has failed, if the dataset is a user's own.

    The batch is read again, so that no batch needs to be kept.

    Args:
        state: before the update.

    Raises:
        DataError: with everything that is wrong with the batch, and the error.
    """
    dataset, at = job.dataset, state.cursor
    if not is_of_ones_own(dataset) or is_stream(dataset) or isinstance(error, DataError):
        return
    batch_size = _batch_size(job, state)
    try:
        batch = next(_epoch_batches(job, batch_size, at))
        problems = [*find_batch_problems(batch, dataset.schema, batch_size, None)]
    except Exception:  # the dataset's own error, which is being raised already
        return
    if problems:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(
            f"dataset: batch of the train split at row {at.offset:,} of epoch {at.epoch}: "
            f"{'; '.join(problems)} (which ended the update with {why})"
        ) from error


def agree_on_end(batches: Iterator[Batch], ranks: Ranks) -> Iterator[Batch]:
    """Yield a rank's batches of a stream, as long as every rank has one.

    Collective. Batches that a rank has read beyond the common end are read again by a resumed run.

    Raises:
        EndOfStream: on every rank, when the stream has ended on one of them.
    """
    while True:
        end, batch = None, None
        try:
            batch = next(batches)
        except EndOfStream as error:
            end = error
        if ranks.all_reduce_max_each([end is not None])[0]:
            raise end or EndOfStream("the stream has ended on another rank")
        assert batch is not None
        yield batch
