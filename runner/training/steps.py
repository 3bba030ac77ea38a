"""Turns a stream of batches into a stream of updates, for every loop that trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from runner.batch import Batch, DataPosition
from runner.data.core.dataset import EndOfStream, epoch_end_offset
from runner.distributed.global_batch import global_batch_size
from runner.embeddings.step_counts import initial_step_count
from runner.errors import ConfigError
from runner.training.batches import check_failed_batch, training_batches
from runner.training.job import Job, LearningRates
from runner.training.state import TrainState
from runner.training.stop_signal import StopSignal
from runner.training.update.context import Context
from runner.training.update.determinism import is_of_own_class, warn_of_unrepeatable_sums
from runner.training.update.task import StepOutput
from runner.training.update.unsaved_state import state_of, warn_of_unsaved_state

_OUTPUT_FIELDS = {"rows_B": Tensor, "cursor": DataPosition, "applied": bool}
_OUTPUT_VALUES = {
    "rows_B": "the numbers of the rows, such as batch.rows_B",
    "cursor": "the position after the update's last batch, its batch.cursor",
    "applied": "True or False, as ctx.update returns it",
}


def steps(
    job: Job,
    state: TrainState,
    stop: StopSignal | None = None,
    *,
    allow_prefetch: bool = True,
    before_update: Callable[[], None] | None = None,
) -> Iterator[StepOutput]:
    """Yield the updates until the end of the run, each counted in `state` before it is yielded.

    Time that the consumer spends (evaluation, saving) does not count as active.

    Args:
        state: where the run stands; changed in place.
        stop: is told at each update whether any rank has received a signal, which needs no
            separate exchange.
        allow_prefetch: whether the next batches may be prepared during an update.
        before_update: called before each update; its time does not count as active either.

    Yields:
        The outcome of each update.

    Raises:
        ConfigError: if the task returns something else, or claims an update that it has not made.
        DataError: if an update fails because of an invalid batch of a user's dataset.
    """
    multiplier = state.batch_multiplier
    batches = training_batches(job, state, allow_prefetch)
    ranks = job.context.ranks
    root_modules = job.context.root_modules()
    first = True
    while not is_finished(job, state):
        if before_update is not None:
            before_update()
        started = time.perf_counter()
        if state.batch_multiplier != multiplier:  # from the same position on, in larger updates
            batches.close()
            multiplier = state.batch_multiplier
            batches = training_batches(job, state, allow_prefetch)
        state.rates = set_learning_rates(job, state)
        for module in root_modules:
            if not module.training:  # after an evaluation; train() is slow
                module.train()
        try:
            output = (_make_first_update if first else _make_update)(job, batches)
            first = False
        except EndOfStream as end:
            job.view.note(str(end))
            return
        except Exception as error:
            check_failed_batch(job, state, error)
            raise
        job.context.end_update(applied=output.applied)
        _count_update(job, state, output)
        if output.applied and job.context.ema is not None:
            job.context.ema.update(state.step - state.skipped)
        # one clock for all ranks: actions due by time contain collectives, which all must enter
        active_s = state.active_s + time.perf_counter() - started
        local_signal = (stop.local_signal or 0) if stop is not None else 0
        state.active_s, largest_signal = ranks.all_reduce_max_each([active_s, local_signal])
        if stop is not None:
            stop.set_agreed(largest_signal)
        yield output
        del output  # freed before the next update: other outputs than logits may be large


def _make_update(job: Job, batches: Iterator[Batch]) -> StepOutput:
    output = job.task.train_step(job.context, batches)
    if not isinstance(output, StepOutput):
        raise ConfigError(
            f"task: train_step of {type(job.task).__name__} returned "
            f"{type(output).__name__}; it must return a runner.StepOutput"
        )
    for name, kind in _OUTPUT_FIELDS.items():
        value = getattr(output, name)
        if not isinstance(value, kind):
            raise ConfigError(
                f"task: train_step of {type(job.task).__name__} returned a StepOutput with "
                f"{name}={value!r:.80}; it must be {_OUTPUT_VALUES[name]}"
            )
    return output


def _make_first_update(job: Job, batches: Iterator[Batch]) -> StepOutput:
    """Make the first update while watching the user's parts.

    Raises:
        ConfigError: if a user's task reports an applied update, but has trained nothing.
    """
    context, task = job.context, job.task
    with watch_first_update(job):
        # tables alone need no optimizer: they step inside a backward
        if not is_of_own_class(task) or not context.dense_parameters:
            return _make_update(job, batches)
        with watch_weights(context) as has_trained:
            output = _make_update(job, batches)
        if output.applied and not has_trained():
            raise ConfigError(
                f"task: train_step of {type(task).__name__} returned applied=True, but no "
                "optimizer has stepped and no weight has changed; it must return what "
                "ctx.update(embeddings, boundaries) or ctx.step(optimizer) returns"
            )
        return output


def _count_update(job: Job, state: TrainState, output: StepOutput) -> None:
    state.step += 1
    state.examples += count_examples(job, state.cursor, output, state.batch_multiplier)
    state.cursor = output.cursor
    state.skipped += not output.applied
    state.skipped_in_a_row = 0 if output.applied else state.skipped_in_a_row + 1


@contextmanager
def watch_first_update(job: Job) -> Iterator[None]:
    """Watch a user's parts in one update for sums that do not repeat, and state not saved.

    Operations of compiled code are not watched, since it would be compiled again.
    """
    context = job.context
    parts = {"model": context.model, "loss": context.loss, "task": job.task}
    with warn_of_unsaved_state(parts, job.view.warn):
        if job.trainer.compile:
            yield
        else:
            with warn_of_unrepeatable_sums(parts, job.device, job.view.warn):
                yield


def count_examples(
    job: Job, before: DataPosition, output: StepOutput, batch_multiplier: int = 1
) -> int:
    """Return the examples of an update on all ranks.

    On several ranks or with padding it is the distance that the position in the data has moved,
    without rows that were dropped or only pad a batch.
    """
    if not job.context.ranks.is_distributed and job.dataset.rest != "pad":
        return output.rows_B.numel()
    after, update_rows = output.cursor, rows_per_update(job, batch_multiplier)
    moved = after.offset
    for epoch in range(before.epoch, after.epoch):
        start = before.offset if epoch == before.epoch else 0
        moved += epoch_end_offset(job.dataset, start, update_rows) - start
    return moved - before.offset * (after.epoch == before.epoch)


def is_finished(job: Job, state: TrainState) -> bool:
    """Return whether the run has reached its length or was stopped early."""
    if state.stopped is not None:
        return True
    if job.trainer.max_steps is not None:
        return state.step >= job.trainer.max_steps
    assert job.trainer.max_epochs is not None
    return state.cursor.epoch >= job.trainer.max_epochs


def rows_per_update(job: Job, batch_multiplier: int = 1) -> int:
    """Return the rows of a full update over all ranks, not shortened by the end of an epoch."""
    trainer, world_size = job.trainer, job.context.ranks.world_size
    return global_batch_size(trainer.batch_size, trainer.accumulate, world_size, batch_multiplier)


def current_total_steps(job: Job, state: TrainState) -> int:
    """Return the number of updates of the whole run, which falls when updates grow."""
    if job.trainer.max_steps is not None or state.batch_multiplier == 1:
        return job.total_steps
    assert job.trainer.max_epochs is not None
    rows = rows_per_update(job, state.batch_multiplier)
    epochs = job.trainer.max_epochs - state.cursor.epoch
    if epochs <= 0:
        return state.step
    left = updates_per_epoch(job, rows, start_offset=state.cursor.offset)
    return state.step + left + (epochs - 1) * updates_per_epoch(job, rows)


def updates_per_epoch(job: Job, update_rows: int, *, start_offset: int = 0) -> int:
    """Return the updates of `update_rows` rows in an epoch, or in its rest from an offset on."""
    num_rows = epoch_end_offset(job.dataset, start_offset, update_rows) - start_offset
    return -(-num_rows // update_rows)


def schedule_step(job: Job, state: TrainState) -> int:
    """Return the number of the next update in the schedule, from 1.

    A run of epochs whose updates have grown goes through its schedule by examples, so that the
    schedule neither jumps nor ends early: the number is that of the original update that ends at
    the same example.
    """
    if job.trainer.max_epochs is None or state.batch_multiplier == 1:
        return state.step + 1
    rows = rows_per_update(job)
    per_epoch = updates_per_epoch(job, rows)
    end = state.cursor.offset + rows * state.batch_multiplier
    return state.cursor.epoch * per_epoch + min(-(-end // rows), per_epoch)


def set_learning_rates(job: Job, state: TrainState) -> dict[str, float]:
    """Set and return the learning rates of the next update."""
    context = job.context
    rates = {
        name: rate * state.lr_scale
        for name, rate in learning_rates_at(job.learning_rates, schedule_step(job, state)).items()
    }
    for name, optimizer in context.optimizers().items():
        for group in optimizer.param_groups:
            group["lr"] = rates[name]
    for name, tables in context.table_groups.items():
        # skipped updates do not count in Adam's bias correction, in tables as in the dense half
        prior = initial_step_count(tables, context.prior_table_updates)
        tables.set_lr_and_step(rates[name], prior + state.step - state.skipped + 1)
    return rates


def learning_rates_at(rates: LearningRates, update: int) -> dict[str, float]:
    """Return the learning rates by name at an update, from 1. A pure function of its number."""
    factor = rates.factor(update)
    factors = {name: factor_of(update) for name, factor_of in rates.factors_by_name.items()}
    return {name: base * factors.get(name, factor) for name, base in rates.base.items()}


@contextmanager
def watch_weights(context: Context) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether anything outside of the tables was trained so far.

    It is true after any step of an optimizer, also at a rate of 0 or without the context, and after
    any change of a weight or buffer.
    """
    tensors: list[Tensor] = [*context.dense_parameters]
    for module in context.root_modules():
        tensors += module.buffers()
    for module in context.task_modules.values():
        tensors += module.parameters()
    before = [state_of(tensor) for tensor in tensors]
    stepped = []
    with register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer)):
        yield lambda: bool(stepped) or [state_of(tensor) for tensor in tensors] != before
