"""Details of layers that the twins of whole models do not see: chunks, limits, dropout."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from runner.batch import DataPosition
from runner.models.finalmlp import FeatureGate
from runner.models.layers import small_products
from runner.models.layers.cin import compress
from runner.models.layers.dot import DotInteraction
from runner.models.layers.dropout import Dropout
from runner.models.layers.experts import Mixture
from runner.models.layers.fm import pairwise_dot_sum
from runner.models.layers.interest import mean_pool
from runner.models.layers.linear import Linear
from runner.models.layers.mlp import HiddenLayers, mlp
from runner.models.retrieval.negatives import NegativeSampler
from tests.devices import DEVICES


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_columns", [1, 7, 64])
@pytest.mark.parametrize("at_a_time", [1, 40, 100, 10**9])
@pytest.mark.parametrize("is_first", [False, True])
def test_the_chunks_of_a_cin_layer_change_nothing(
    monkeypatch, num_columns, at_a_time, is_first, device
):
    monkeypatch.setitem(small_products._NUMBERS_AT_A_TIME, device.type, at_a_time)
    x0, x = torch.randn(5, num_columns), torch.randn(5 if is_first else 4, num_columns)
    weight, grad = torch.randn(3, len(x) * 5), torch.randn(3, num_columns)
    ours = [t.clone().to(device).requires_grad_() for t in (x0, weight, x)]
    plain = [t.clone().double().requires_grad_() for t in (x0, weight, x)]
    if is_first:  # its x is x0
        ours[2], plain[2] = ours[0], plain[0]
    out = compress(ours[2], ours[0], ours[1])
    out.backward(grad.to(device))
    expected = torch.einsum("hij,ir,jr->hr", plain[1].unflatten(1, (-1, 5)), plain[2], plain[0])
    expected.backward(grad.double())
    torch.testing.assert_close(out.double().cpu(), expected, rtol=0, atol=1e-5)
    for mine, twin in zip(ours, plain):
        torch.testing.assert_close(mine.grad.double().cpu(), twin.grad, rtol=0, atol=1e-4)


def test_a_cin_layer_keeps_no_products_for_its_backward():
    x, x0 = torch.randn(30, 64, requires_grad=True), torch.randn(20, 64, requires_grad=True)
    weight, kept = torch.randn(3, 600, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        compress(x, x0, weight)
    assert sum(kept) == x.numel() + x0.numel() + weight.numel() < 64 * 600


def pairs_by_hand(x_BND):
    size = x_BND.shape[1]
    pairs = [(x_BND[:, i] * x_BND[:, j]).sum(1) for i in range(size) for j in range(i)]
    return torch.stack(pairs, dim=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_rows", [1, 7, 64])
@pytest.mark.parametrize("at_a_time", [1, 25, 70, 10**9])
def test_the_chunks_of_dot_products_change_nothing(monkeypatch, num_rows, at_a_time, device):
    monkeypatch.setitem(small_products._NUMBERS_AT_A_TIME, device.type, at_a_time)
    x, grad = torch.randn(num_rows, 5, 3), torch.randn(num_rows, 10)
    ours, plain = x.to(device, copy=True).requires_grad_(), x.double().requires_grad_()
    found, expected = DotInteraction(5).to(device)(ours), pairs_by_hand(plain)
    found.backward(grad.to(device))
    expected.backward(grad.double())
    torch.testing.assert_close(found.double().cpu(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.grad.double().cpu(), plain.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_dot_products_have_gradients_of_gradients(device):
    x = torch.randn(4, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(DotInteraction(5).to(device), x)
    assert torch.autograd.gradgradcheck(DotInteraction(5).to(device), x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 5])
def test_dot_products_are_of_low_precision_under_autocast_only(size, dtype, device):
    x = torch.randn(6, size, 3).to(device).requires_grad_()
    layer, full = DotInteraction(size).to(device), x.detach().clone().requires_grad_()
    with torch.autocast(device.type, dtype=dtype):
        low = layer(x)
    assert (low.dtype, layer(full).dtype) == (dtype, torch.float32)
    torch.testing.assert_close(low.float(), layer(full), rtol=0.05, atol=0.05)
    for out in (low, layer(full)):
        out.float().square().sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, full.grad, rtol=0.1, atol=0.1)


def test_the_sum_of_dot_products_is_that_of_the_pairs_with_its_gradients():
    x = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    expected = pairs_by_hand(x).sum(1, keepdim=True)
    torch.testing.assert_close(pairwise_dot_sum(x), expected)
    assert torch.autograd.gradcheck(pairwise_dot_sum, x)
    assert torch.autograd.gradgradcheck(pairwise_dot_sum, x)


def test_pairs_of_a_row_of_zeros_have_a_gradient():
    x = torch.zeros(2, 3, 4, requires_grad=True)
    pairwise_dot_sum(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(2, 3, 4))


def test_an_mlp_drops_its_input_where_asked_and_not_its_output():
    hidden = HiddenLayers(dropout=0.5)
    layers = mlp(4, [8, 2], hidden, input_dropout=0.25, last="linear")
    kinds = [type(layer) for layer in layers]
    assert kinds == [Dropout, Linear, nn.ReLU, Dropout, Linear]
    assert (layers[0].p, layers[3].p) == (0.25, 0.5)


@pytest.mark.parametrize("widths", [[0], [8, -1], [8, True], [8, 2.0]])
def test_an_mlp_refuses_widths_that_are_not_positive_integers(widths):
    with pytest.raises(
        ValueError, match=r"widths(\[.\])?=.*: (must be at least 1|expected list of whole number)"
    ):
        mlp(4, widths)


def test_a_mixture_of_groups_is_one_of_all_experts():
    mixture = Mixture(6, 5, num_gates=2)
    x, experts = torch.randn(8, 6), torch.randn(8, 5, 3)
    whole = mixture(x, experts)
    assert whole.shape == (8, 2, 3)
    torch.testing.assert_close(mixture(x, *experts.split([2, 2, 1], dim=1)), whole)


@pytest.mark.parametrize("half_life", [None, 2.0])
def test_a_mean_over_events_sends_no_gradient_to_places_behind_the_end(half_life):
    """Clipping would count it: the same histories in longer sequences were clipped more."""
    length_B = torch.tensor([0, 2, 5])
    is_event_BL = torch.arange(5) < length_B[:, None]
    x_BLD = (torch.randn(3, 5, 4) * is_event_BL[:, :, None]).requires_grad_()
    mean_pool(x_BLD, length_B, half_life).sum().backward()
    assert torch.equal(x_BLD.grad.abs().sum(2) > 0, is_event_BL)


def test_a_gate_without_features_starts_open_and_a_gate_of_features_follows_them():
    x = torch.randn(8, 6)
    torch.testing.assert_close(FeatureGate(6, 0, [4])(x, None), x)
    gate = FeatureGate(6, 3, [4])
    one, two = gate(x, torch.randn(8, 3)), gate(x, torch.randn(8, 3))
    assert not torch.equal(one, two)
    assert ((one / x > 0) & (one / x < 2)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_candidates_are_the_same_on_every_device_also_with_deterministic_kernels(device):
    """CUDA has no deterministic cumulative sum of floats."""
    negatives = NegativeSampler(50, uniform=5, popularity=40)
    counts = np.arange(50) % 7
    negatives.to(device).counts_I.copy_(torch.from_numpy(counts))
    torch.use_deterministic_algorithms(True)
    try:
        drawn = negatives.sample(DataPosition(2, 96))
    finally:
        torch.use_deterministic_algorithms(False)
    digest = hashlib.sha256(f"{negatives.seed}/2/96".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    uniform = torch.randint(50, (5,), generator=generator).tolist()
    shares = torch.rand(40, generator=generator, dtype=torch.float64).numpy()
    popular = np.searchsorted(counts.cumsum(), shares * counts.sum(), side="right")
    assert drawn is not None and drawn.device == device
    assert drawn.tolist() == uniform + popular.tolist()
    assert len({*popular.tolist()}) > 10 and all(counts[i] for i in popular)
