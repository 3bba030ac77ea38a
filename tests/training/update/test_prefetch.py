"""Batches reach the device in their order, once each, with their positions."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.prefetch import copy_to_device, prefetch
from tests.devices import CPU, DEVICES
from tests.tiny import make_context, random_batch, snapshot
from tests.tiny_job import START, make_job


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parity("T2")
def test_items_come_in_order_each_begun_at_most_depth_items_earlier(count, depth):
    begun, taken = [], []

    def begin(item):
        begun.append(item)
        assert len(begun) - len(taken) <= depth + 1
        return lambda: item * 10

    for value in prefetch(iter(range(count)), begin, depth=depth):
        taken.append(value)
        assert len(begun) == min(count, len(taken) + depth)
    assert taken == [10 * i for i in range(count)]


def test_an_error_of_the_data_comes_after_the_batches_before_it():
    def source():
        yield 1
        yield 2
        raise ValueError("column C3 of row 5")

    items = prefetch(source(), lambda item: lambda: item, depth=4)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="column C3 of row 5"):
        next(items)


def test_on_cpu_a_batch_is_the_very_same_and_nothing_is_read_ahead():
    read = []

    def source():
        for number in range(3):
            read.append(number)
            yield replace(random_batch(4, number), cursor=DataPosition(0, number))

    batches = copy_to_device(source(), CPU)
    assert next(batches).cursor == DataPosition(0, 0)
    assert read == [0]


@pytest.mark.parity("T2")
def test_a_training_with_prefetch_equals_one_without(monkeypatch):
    """As on CUDA, with copies on the CPU in place of those of the stream."""

    def copy_early(batches, device, *, depth):
        def begin(batch: Batch):
            moved = batch._map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t)
            return lambda: moved

        yield from prefetch(batches, begin, depth=depth)

    def trained(cursor: DataPosition = START) -> tuple[list[DataPosition], dict]:
        context = make_context("adagrad")
        job, state = make_job(context), TrainState(cursor=cursor)
        cursors = [state.cursor for _ in zip(range(8), steps(job, state))]
        return cursors, snapshot(context)

    cursors, weights = trained()
    monkeypatch.setattr("runner.training.update.prefetch.copy_to_device", copy_early)
    again, others = trained()
    assert again == cursors and cursors[4] == DataPosition(1, 0)
    assert all(torch.equal(t, others[name]) for name, t in weights.items())


@pytest.mark.parametrize("device", DEVICES)
def test_values_and_positions_are_those_of_a_plain_copy(device):
    source = [replace(random_batch(2000, n), cursor=DataPosition(0, n)) for n in range(20)]
    seen = 0
    for ours, theirs in zip(copy_to_device(iter(source), device), source):
        busy = torch.randn(300, 300, device=device)
        for _ in range(20 if device.type == "cuda" else 0):
            busy = busy @ busy  # keeps the training stream behind the copies
        assert ours.cursor == theirs.cursor
        for field in fields(Batch):
            one, two = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(one, KeyedJaggedTensor):
                one, two = one.values(), two.values()
            if isinstance(one, torch.Tensor):
                assert one.device == device and torch.equal(one.cpu(), two), field.name
        seen += 1
    assert seen == 20
