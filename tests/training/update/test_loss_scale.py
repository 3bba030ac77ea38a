"""The loss scale: it unscales what it scales, adapts, and skips an update that overflows."""

from __future__ import annotations

import pytest
import torch

from runner.training.update.loss_scale import LossScale
from runner.training.update.task import Supervised
from tests.devices import CPU, DEVICES
from tests.tiny import make_context, random_batch, snapshot


def trained(context, batches):
    """The outputs of one update for each batch."""
    outputs = []
    for step, batch in enumerate(batches, start=1):
        context.tables.set_lr_and_step(0.1, step)
        outputs.append(Supervised().train_step(context, iter([batch.to(context.device)])))
        context.end_update(applied=True)
    return outputs


@pytest.mark.parametrize("device", DEVICES)
def test_a_scaled_loss_gives_the_same_update(device):
    plain, scaled = (make_context("rowwise_adagrad", device=device) for _ in range(2))
    scaled.loss_scale = LossScale(device, initial=1024.0)
    for context in (plain, scaled):
        trained(context, [random_batch(64)])
    a, b = snapshot(plain), snapshot(scaled)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)


def test_it_halves_on_overflow_and_doubles_after_a_streak():
    scale = LossScale(CPU, initial=8.0)
    scale.update()  # nothing stepped
    assert scale.state.tolist() == [8.0, 0.0]
    scale.record(False)
    assert scale.state.tolist() == [8.0, 0.0], "until the update ends"
    scale.update()
    assert scale.state.tolist() == [4.0, 0.0]
    for _ in range(LossScale.GROWTH_INTERVAL):
        for _player in range(2):  # two optimizers of one update count once
            scale.record(True)
        scale.update()
    assert scale.state.tolist() == [8.0, 0.0]
    scale.record(True)
    scale.record(False)
    scale.update()
    assert scale.state.tolist() == [4.0, 0.0]


def test_two_players_of_one_update_are_unscaled_by_the_scale_of_their_backward():
    """Both run backward before either steps; the overflow of the first lowers the scale later."""
    context = make_context()
    context.loss_scale = LossScale(CPU, initial=1024.0)
    players = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([p], lr=1.0) for p in players]
    for name, optimizer in zip("ab", optimizers):
        context.add_optimizer(name, optimizer)
    context.backward((players[0] * torch.tensor([float("inf"), 0.0])).sum())
    context.backward((players[1] * torch.tensor([0.25, 0.5])).sum())
    assert [context.step(optimizer) for optimizer in optimizers] == [False, True]
    assert players[0].tolist() == [1.0, 1.0] and players[1].tolist() == [0.75, 0.5]
    context.end_update(applied=True)
    assert context.loss_scale.state.tolist() == [512.0, 0.0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parity("T5", "N7")
def test_an_update_whose_scaled_loss_overflows_is_skipped(device):
    context = make_context(device=device)
    context.loss_scale = LossScale(device, initial=1e39)
    before = snapshot(context)
    [output] = trained(context, [random_batch(64)])
    after = snapshot(context)
    assert not output.applied
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert context.loss_scale.state[0] == 5e38


def in_fp16(kind, device, initial, **more):
    context = make_context(kind, device=device, amp=True, **more)
    context.amp_dtype, context.loss_scale = torch.float16, LossScale(device, initial=initial)
    return context


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_fp16_updates_are_those_of_float32_within_its_precision(kind, device):
    """SGD shows a gradient that is too large by a factor, which the others would hide."""
    full, half = make_context(kind, device=device), in_fp16(kind, device, 2.0**12)
    half.micro_batch_size = 24
    seen = []
    half.model.top[0].register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    start = snapshot(full)
    batches = [random_batch(64, seed) for seed in range(3)]
    for context in (full, half):
        assert all(output.applied for output in trained(context, batches))
    assert set(seen) == {torch.float16}
    ours, theirs = snapshot(half), snapshot(full)
    for name, tensor in theirs.items():
        moved, error = (tensor - start[name]).norm(), (ours[name] - tensor).norm()
        assert error <= 0.05 * moved + 1e-6, (name, float(error), float(moved))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adam"])
def test_an_overflow_in_fp16_skips_tables_and_dense_alike_and_lowers_the_scale(kind, device):
    """fp16 has no numbers beyond 65,504, so the scale falls until the gradients fit."""
    context = in_fp16(kind, device, 2.0**60, micro_batch_size=24)
    before, applied = snapshot(context), []
    for step in range(80):
        context.tables.set_lr_and_step(0.1, sum(applied) + 1)
        batch = random_batch(64, step).to(device)
        applied.append(Supervised().train_step(context, iter([batch])).applied)
        context.end_update(applied=True)
        if applied[-1]:
            break
        after = snapshot(context)
        assert all(torch.equal(after[n], before[n]) for n in before), step
    assert len(applied) > 20 and applied[-1]
    assert context.loss_scale.state.tolist() == [2.0 ** (61 - len(applied)), 1.0]
    after = snapshot(context)
    moved = {name for name in before if not torch.equal(after[name], before[name])}
    assert {"tables/a/weight", "tables/b/weight", "tables/m/weight", "top.0.weight"} <= moved
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
