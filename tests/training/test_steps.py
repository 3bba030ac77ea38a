"""An update that was skipped leaves nothing behind; one that trains nothing is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch

from runner.batch import Batch
from runner.errors import ConfigError
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.task import StepCapture, StepOutput, Supervised
from tests.tiny import make_context, snapshot
from tests.tiny_job import Rows, make_job

BATCH = 32


class WithoutSecondBatch(Rows):
    """All batches but the second."""

    def batches(self, *args, **more) -> Iterator[Batch]:
        batches = list(super().batches(*args, **more))
        yield from (*batches[:1], *batches[2:])


def trained(kind: str, data: Rows, num_updates: int) -> tuple[dict[str, torch.Tensor], TrainState]:
    """All weights and states after `num_updates` updates, with Adam in the dense half."""
    context = make_context(kind, lr=0.05)
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.05)
    job, state = make_job(context, dataset=data), TrainState()
    assert len(list(islice(steps(job, state), num_updates))) == num_updates
    return snapshot(context), state


@pytest.mark.parametrize("kind", ["adam", "lamb", "partial_rowwise_adam", "rowwise_adagrad"])
def test_later_updates_are_those_of_a_run_that_never_saw_the_batch(kind):
    """Bit for bit, bias correction included, which counts only updates that were applied."""
    with_nan = Rows()
    with_nan.all.dense_BD[BATCH + 8] = float("nan")
    ours, state = trained(kind, with_nan, 5)
    theirs, _ = trained(kind, WithoutSecondBatch(), 4)
    assert (state.step, state.skipped) == (5, 1)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert not torch.equal(ours["tables/a/weight"], trained(kind, Rows(), 1)[0]["tables/a/weight"])


class Idle(Supervised):
    """A task that forgets its update: `update` is what it does in its place."""

    def __init__(self, update=lambda ctx: None):
        self.update = update

    def train_step(self, ctx, batches):
        batch = next(batches)
        boundary = ctx.model.embed(batch).detached()
        capture = StepCapture()
        self.forward_backward(ctx, batch, boundary, ctx.total_weight(batch), capture)
        self.update(ctx)
        predictions, losses = tuple(capture.predictions), tuple(capture.losses)
        return StepOutput(predictions, losses, batch.rows_B, batch.cursor, True)


def move_by_hand(ctx):
    for parameter in ctx.dense_parameters:
        parameter.data -= 0.1 * parameter.grad


def step_at_rate_0(ctx):
    ctx.dense_optimizer.param_groups[0]["lr"] = 0.0
    ctx.dense_optimizer.step()


def test_a_task_that_says_that_it_was_applied_and_trains_nothing_is_told_at_the_first_update():
    job = replace(make_job(make_context()), task=Idle())
    with pytest.raises(ConfigError, match=r"Idle returned applied=True, but no optimizer has step"):
        next(steps(job, TrainState()))


@pytest.mark.parametrize("update", [move_by_hand, step_at_rate_0])
def test_a_task_that_trains_without_the_context_is_not_refused(update):
    job = replace(make_job(make_context()), task=Idle(update))
    assert next(steps(job, TrainState())).applied


def test_a_task_of_a_model_whose_dense_half_is_frozen_is_not_refused():
    context = make_context()
    context.dense_parameters = []
    assert next(steps(replace(make_job(context), task=Idle()), TrainState())).applied
