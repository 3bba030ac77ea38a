"""Batch norm against torch's in float64, over an update however it is cut, and what it counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runner.models.layers.activations import Dice
from runner.models.layers.batch_norm import BatchNorm

C = 6


def rows(size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, C, generator=generator, dtype=torch.float64) * 3 + 7


def pair(**settings) -> tuple[BatchNorm, nn.BatchNorm1d]:
    """Ours and torch's with the same weights, in float64."""
    ours, torchs = BatchNorm(C, **settings).double(), nn.BatchNorm1d(C).double()
    for parameter in ("weight", "bias"):
        values = rows(1, seed=9)[0]
        for norm in (ours, torchs):
            getattr(norm, parameter).data.copy_(values)
    return ours, torchs


def backward(norm, x, *more):
    x = x.clone().requires_grad_()
    y = norm(x, *more)
    generator = torch.Generator().manual_seed(3)
    y.backward(torch.randn(y.shape, generator=generator, dtype=y.dtype))
    return y.detach(), x.grad, norm.weight.grad, norm.bias.grad


@pytest.mark.parametrize("weights", [None, torch.ones(8)])
def test_values_gradients_and_running_statistics_are_torchs(weights):
    ours, torchs = pair()
    for seed in range(3):
        for norm in (ours, torchs):
            norm.zero_grad()
        found = backward(ours, rows(8, seed), weights)
        for mine, theirs in zip(found, backward(torchs, rows(8, seed))):
            torch.testing.assert_close(mine, theirs)
        ours.end_update(applied=True)
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    torch.testing.assert_close(ours.eval()(rows(4)), torchs.eval()(rows(4)))
    assert torch.equal(ours(rows(4))[:1], ours(rows(4)[:1])), "the batch does not matter"


def test_rows_of_weight_0_are_normalised_but_do_not_count():
    """Against torch's on the other rows alone, whatever stands in a row that does not count."""
    ours, torchs = pair()
    x, weights = rows(8), torch.tensor([1.0, 0, 0.5, 2, 0, 1, 1, 1])
    x[4] = 1e9
    counts = weights > 0
    y, grad, *_ = backward(ours, x, weights)
    theirs = x[counts].clone().requires_grad_()
    expected = torchs(theirs)
    torch.testing.assert_close(y[counts], expected.detach())
    ours.end_update(applied=True)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    # by autograd, with the statistics written out
    leaf = x.clone().requires_grad_()
    kept = leaf[counts]
    plain = (leaf - kept.mean(0)) / (kept.var(0, correction=0) + ours.eps).sqrt()
    plain = plain * ours.weight.detach() + ours.bias.detach()
    generator = torch.Generator().manual_seed(3)
    plain.backward(torch.randn(y.shape, generator=generator, dtype=y.dtype))
    torch.testing.assert_close(y, plain.detach())
    torch.testing.assert_close(grad, leaf.grad)


def test_the_gradient_of_rows_that_may_not_count_is_that_of_differences():
    weights = torch.tensor([1.0, 0, 1, 1, 2])
    norm = BatchNorm(C).double()
    x = rows(5).requires_grad_()
    torch.autograd.gradcheck(lambda x: norm(x, weights), (x,))


@pytest.mark.parametrize("num_rows", [0, 1])
def test_a_batch_of_at_most_one_row_gives_the_bias_and_moves_no_statistics(num_rows):
    norm, _ = pair()
    before = norm.running_mean.clone(), norm.running_var.clone()
    y, grad, *_ = backward(norm, rows(num_rows))
    assert torch.equal(y, norm.bias.detach().expand(num_rows, C))
    assert torch.equal(grad, torch.zeros(num_rows, C))
    norm.end_update(applied=True)
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])


@pytest.mark.parametrize("scope", ["update", "micro_batch"])
def test_running_statistics_move_once_an_update_by_all_its_rows(scope):
    ours, torchs = pair(scope=scope)
    x = rows(13)
    for part in (x[:4], x[4:5], x[5:]):
        ours(part)
    ours.end_update(applied=True)
    torchs(x)
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)


def test_first_updates_are_averaged_if_asked_for():
    norm = BatchNorm(C, averages_first=True).double()
    means = []
    for update in range(12):
        x = rows(5, seed=update)
        norm(x)
        norm.end_update(applied=update != 2)  # which does not count
        if update != 2:
            means.append(x.mean(0))
        norm(rows(1))  # nor does a batch of one row
        norm.end_update(applied=True)
    of_ten = sum(means[:10]) / 10
    torch.testing.assert_close(norm.running_mean, 0.9 * of_ten + 0.1 * means[10])


def test_a_skipped_update_leaves_no_trace():
    norm, _ = pair()
    norm(rows(8) * float("nan"))
    norm.end_update(applied=False)
    assert torch.equal(norm.running_mean, torch.zeros(C).double())
    norm(rows(8))
    norm.end_update(applied=True)
    assert norm.running_mean.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0] * 63 + [0.0])])
def test_statistics_of_half_precision_are_float32(dtype, weights):
    norm, x = BatchNorm(C), rows(64).to(dtype)
    y = norm(x, weights)
    assert y.dtype == dtype
    norm.end_update(applied=True)
    expected = 0.1 * (x if weights is None else x[:-1]).float().mean(0)
    assert norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-5, atol=1e-6)
    assert norm.eval()(x).dtype == dtype


def test_dice_is_equation_9():
    dice, x = Dice(C).double(), rows(10).requires_grad_()
    dice.alpha.data.copy_(rows(1, 5)[0])
    y = dice(x)
    leaf, alpha = x.detach().clone().requires_grad_(), dice.alpha.detach().clone().requires_grad_()
    p = 1 / (1 + torch.exp(-(leaf - leaf.mean(0)) / (leaf.var(0, correction=0) + 1e-8).sqrt()))
    twin = p * leaf + (1 - p) * alpha * leaf
    torch.testing.assert_close(y, twin)
    grad = rows(10, 2)
    y.backward(grad)
    twin.backward(grad)
    torch.testing.assert_close(x.grad, leaf.grad)
    torch.testing.assert_close(dice.alpha.grad, alpha.grad)
