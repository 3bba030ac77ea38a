"""Batch norm, ReLU and a linear map as one operation give the bits that they give one by one."""

import pytest
import torch

from runner.models.layers import linear, normed_linear
from runner.models.layers.batch_norm import BatchNorm
from runner.models.layers.mlp import HiddenLayers, mlp

ROWS, WIDTH = 64, 9


@pytest.fixture
def net():
    torch.manual_seed(0)
    return mlp(WIDTH, [16, 8, 4], HiddenLayers(norm="batch")).double()


@pytest.fixture
def fused(monkeypatch):
    """Count the operations that are taken as one."""
    calls = []
    apply = normed_linear._NormedLinear.apply
    monkeypatch.setattr(
        normed_linear._NormedLinear, "apply", lambda *args: (calls.append(args), apply(*args))[1]
    )
    return calls


def result(net, x_BC, *, one_by_one=False, weights_B=None):
    """Return output, gradients and statistics; a hook keeps the modules apart."""
    hooks = [module.register_forward_hook(lambda *_: None) for module in net if one_by_one]
    x_BC = x_BC.clone().requires_grad_()
    output_BW = net(x_BC, weights_B)
    torch.manual_seed(1)
    grads = torch.autograd.grad(
        (output_BW * torch.randn_like(output_BW)).sum(), [x_BC, *net.parameters()]
    )
    for hook in hooks:
        hook.remove()
    norms = [module for module in net if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.end_update(applied=True)
    running = [t.clone() for norm in norms for t in (norm.running_mean, norm.running_var)]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
    return [output_BW, *grads, *running]


@pytest.mark.parametrize("by_onednn", [False, True])
def test_output_gradients_and_statistics_are_those_of_the_modules(
    net, fused, by_onednn, monkeypatch
):
    dtype = torch.float32 if by_onednn else torch.float64
    if by_onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    for module in (linear, normed_linear):
        monkeypatch.setattr(module, "takes_onednn", lambda *_: by_onednn)
    net, x_BC = net.to(dtype), torch.randn(ROWS, WIDTH, dtype=dtype) * 3 + 5
    expected = result(net, x_BC, one_by_one=True)
    assert not fused
    found = result(net, x_BC)
    assert len(fused) == 2, "the norm after the last linear map stands alone"
    assert all(map(torch.equal, found, expected))


def test_the_gradient_is_that_of_finite_differences(net, fused):
    x_BC = torch.randn(12, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, x_BC)
    assert fused


def test_rows_that_do_not_count_keep_the_modules_apart(net, fused):
    x_BC = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    weights_B = torch.ones(ROWS).index_fill(0, torch.tensor([3, 5]), 0.0)
    found = result(net, x_BC, weights_B=weights_B)
    assert not fused
    assert not torch.equal(found[0], result(net, x_BC, weights_B=torch.ones(ROWS))[0])
    assert len(fused) == 2


def test_an_evaluation_takes_the_running_statistics(net, fused):
    x_BC = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    net.eval()
    torch.testing.assert_close(net(x_BC)[:5], net(x_BC[:5]))
    assert not fused
