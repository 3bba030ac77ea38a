"""An update that was skipped leaves nothing behind; one that trains nothing is told."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch
from runner.errors import ConfigError, DataError
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.row_threads import RowThreads
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


def test_rows_of_weight_0_of_a_dataset_of_ones_own_may_hold_nan():
    """As in evaluations, and as the check of a batch allows."""
    clean, with_nan = Rows(), Rows()
    for data in (clean, with_nan):
        data.all.weights_B[::7] = 0
        data.all.labels_BT[::7] = data.all.dense_BD[::7] = 0
    with_nan.all.labels_BT[::7] = with_nan.all.dense_BD[::7] = float("nan")
    (ours, state), (theirs, _) = trained("adam", with_nan, 5), trained("adam", clean, 5)
    assert state.skipped == 0
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


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


def test_the_first_update_of_a_task_of_ones_own_has_the_threads_of_later_ones():
    """Else the first update after a resume would round in another way than without."""
    seen = []

    class Own(Supervised):
        def train_step(self, ctx, batches):
            seen.append(torch.get_num_threads())
            return super().train_step(ctx, batches)

    context = make_context()
    context.row_threads = RowThreads([], 3)
    torch.set_num_threads(3)
    list(islice(steps(replace(make_job(context), task=Own()), TrainState()), 2))
    assert seen == [3, 3]


@pytest.mark.parametrize("update", [move_by_hand, step_at_rate_0])
def test_a_task_that_trains_without_the_context_is_not_refused(update):
    job = replace(make_job(make_context()), task=Idle(update))
    assert next(steps(job, TrainState())).applied


def test_a_task_of_a_model_whose_dense_half_is_frozen_is_not_refused():
    context = make_context()
    context.dense_parameters = []
    assert next(steps(replace(make_job(context), task=Idle()), TrainState())).applied


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("applied", None, r"StepOutput with applied=None; it must be True or False, as ctx.update"),
        ("cursor", None, r"StepOutput with cursor=None; it must be .*, its batch.cursor$"),
        ("rows_B", [3, 4], r"StepOutput with rows_B=\[3, 4\]; .* such as batch.rows_B$"),
    ],
)
def test_an_output_with_a_field_of_another_kind_is_told(field, value, said):
    class Wrong(Supervised):
        def train_step(self, ctx, batches):
            return replace(super().train_step(ctx, batches), **{field: value})

    job = replace(make_job(make_context()), task=Wrong())
    with pytest.raises(ConfigError, match=f"^task: train_step of Wrong returned a {said}"):
        next(steps(job, TrainState()))


class LateRows(Rows):
    """Rows whose third batch differs from the schema by `change`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def batches(self, *args, **more):
        for batch in super().batches(*args, **more):
            yield self.change(batch) if batch.rows_B[0] == 2 * BATCH else batch


def with_id_outside(batch: Batch) -> Batch:
    ids = batch.sparse.values().clone()
    ids[0] = 10**6
    keys, lengths = batch.sparse.keys(), batch.sparse.lengths()
    return replace(batch, sparse=KeyedJaggedTensor(keys, ids, lengths=lengths))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_id_outside, r"sparse: a has id 1000000, outside .*which ended the update with \w+: "),
        (
            lambda b: replace(b, labels_BT=b.labels_BT[:-1]),
            r"labels_BT: must be float32 of \[32, 1",
        ),
        (lambda b: None, r"is a NoneType, not a runner.Batch \(which ended"),
    ],
)
def test_a_later_batch_of_ones_own_that_ends_an_update_is_told_with_its_place(change, said):
    job, state = make_job(make_context(), dataset=LateRows(change)), TrainState()
    place = "^dataset: batch of the train split at row 64 of epoch 0: "
    with pytest.raises(DataError, match=place + said):
        list(steps(job, state))
    assert state.step == 2


def test_an_update_that_fails_on_a_good_batch_or_in_the_dataset_keeps_its_error():
    class Broken(Supervised):
        def train_step(self, ctx, batches):
            next(batches)
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="of the task"):
        next(steps(replace(make_job(make_context()), task=Broken()), TrainState()))

    def fail(batch):
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        list(steps(make_job(make_context(), dataset=LateRows(fail)), TrainState()))


def test_what_an_update_returned_takes_no_memory_during_the_next():
    outputs: list[weakref.ref] = []
    kept: list[bool] = []

    class Watched(Supervised):
        looks_up_once = True

        def train_step(self, ctx, batches):
            kept.extend(output() is not None for output in outputs)
            return super().train_step(ctx, batches)

    job = replace(make_job(make_context("sgd")), task=Watched())
    for output in islice(steps(job, TrainState()), 3):
        outputs.append(weakref.ref(output))
        del output
    assert kept == [False, False, False]
