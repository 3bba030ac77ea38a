"""The linear map whose products may be oneDNN's or have padded rows, beside PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runner.models.layers import linear
from runner.models.layers.linear import Linear


@pytest.fixture
def products(monkeypatch):
    """Make every CPU one on which oneDNN is the faster, and count the products that we make."""
    calls = []
    multiply = linear.multiply

    def counted(*args, **options):
        calls.append(args)
        return multiply(*args, **options)

    monkeypatch.setattr(linear, "has_faster_onednn", lambda: True)
    monkeypatch.setattr(linear, "takes_numpy_alone", lambda *_: False)
    monkeypatch.setattr(linear, "LEAST_PRODUCT", 12 * 7)
    monkeypatch.setattr(linear, "multiply", counted)
    return calls


@pytest.fixture(params=["onednn", "padded"])
def either(request, products, monkeypatch):
    """Take one of both ways, whatever the CPU; rows of 12 and of 7 are padded to 16."""
    if request.param == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(linear, "has_faster_onednn", lambda: request.param == "onednn")
    monkeypatch.setattr(linear, "LEAST_PADDED", 1)
    return products


def pair(bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, plain = Linear(12, 7, bias=bias), nn.Linear(12, 7, bias=bias)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def gradients(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the output and the gradients of its square, and of their own squares."""
    x = x.clone().requires_grad_()
    out = layer(x)
    inputs = [x, *layer.parameters()]
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    return [out, *first, *second]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(33, 12), (5, 4, 12), (1, 12)])
def test_values_and_gradients_of_both_orders_are_those_of_pytorch(either, bias, shape):
    ours, plain = pair(bias)
    x = torch.randn(shape) / 4  # small enough for sums of squares
    found, expected = gradients(ours, x), gradients(plain, x)
    assert len(either) >= 2, "forward, and the gradient of the input"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(ours, x), strict=True))


@pytest.mark.parametrize("shape", [(9, 12), (5, 4, 12)])
def test_a_hook_sees_the_gradient_of_an_output_that_is_overwritten(either, shape):
    seen = []
    x = torch.randn(shape)
    for layer, relu in zip(pair(), (torch.relu_, torch.relu), strict=True):
        out = layer(x)
        out.register_hook(seen.append)
        (relu(out) + 1).square().sum().backward()
    torch.testing.assert_close(seen[0], seen[1])


def test_an_input_that_is_no_part_of_the_graph_and_one_with_strides(either):
    ours, plain = pair()
    x = torch.randn(12, 9).t()
    for layer in (ours, plain):
        layer(x).sum().backward()
    assert len(either) == 2, "forward, and the gradient of the weight"
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad)


def test_rows_of_a_padded_product_begin_at_aligned_addresses(monkeypatch):
    monkeypatch.setattr(linear, "LEAST_PRODUCT", 1)
    x, weight = torch.randn(5, 8, 429), torch.randn(429, 429)
    out = linear.multiply(x, weight, None, by_onednn=False)
    assert out.stride() == (8 * 432, 432, 1) and out.shape == (5, 8, 429)
    torch.testing.assert_close(out, nn.functional.linear(x, weight))
    aligned = linear.multiply(x[..., :400], weight[:, :400], None, by_onednn=False)
    assert aligned.stride() == (8 * 432, 432, 1), "the width of the result decides"
    assert linear.multiply(x, weight[:400], None, by_onednn=False).is_contiguous()


@pytest.mark.parametrize(
    ("rows", "width", "outputs"), [(64, 429, 400), (64, 429, 131), (1, 131, 7)]
)
def test_the_gradient_of_a_weight_has_the_bits_of_pytorchs_product(
    rows, width, outputs, monkeypatch
):
    monkeypatch.setattr(linear, "has_faster_onednn", lambda: False)
    monkeypatch.setattr(linear, "LEAST_PRODUCT", 1)
    torch.manual_seed(0)
    layer, x = Linear(width, outputs), torch.randn(rows, width)
    out = layer(x)
    grad = torch.randn_like(out)
    out.backward(grad)
    assert torch.equal(layer.weight.grad, grad.t() @ x)
    assert layer.weight.grad.is_contiguous()


@pytest.mark.parametrize("shape", [(33, 12), (5, 4, 12)])
def test_the_gradient_of_a_weight_may_be_numpys(shape, products, monkeypatch):
    made = []
    by_numpy = linear.multiply_by_numpy
    monkeypatch.setattr(linear, "takes_numpy_alone", lambda *_: True)
    monkeypatch.setattr(
        linear, "multiply_by_numpy", lambda *pair: made.append(pair) or by_numpy(*pair)
    )
    ours, plain = pair()
    x = torch.randn(shape)
    for layer in (ours, plain):
        layer(x).square().sum().backward()
    assert len(made) == 1
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "missing",
    [None, "has_faster_onednn", "has_avx512_openblas", "multiplies_on_one_thread", "one thread"],
)
def test_numpy_multiplies_where_it_is_faster_and_neither_library_has_threads(missing, monkeypatch):
    for name in ("has_faster_onednn", "has_avx512_openblas", "multiplies_on_one_thread"):
        monkeypatch.setattr(linear, name, lambda name=name: name != missing)
    threads = 2 if missing == "one thread" else 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x = torch.randn(3, 4)
    assert linear.takes_numpy_alone(x, x) == (missing is None)
    assert not linear.takes_numpy_alone(x.double(), x.double())
    assert not linear.takes_numpy_alone(x.bfloat16(), x)


def test_an_exported_graph_and_other_types_keep_the_products_of_pytorch(either):
    ours, plain = pair()
    x = torch.randn(9, 12)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), plain(x))
    assert torch.equal(ours(x[:0]), plain(x[:0])), "too small, as those of few rows are"
    exported = torch.export.export(ours, (x,)).module()
    assert torch.equal(exported(x), plain(x))
    assert torch.equal(ours.double()(x.double()), plain.double()(x.double()))
    assert not either


@pytest.mark.parametrize(("rows", "width"), [(1, 429), (3, 429), (1500, 429), (1024, 130)])
@pytest.mark.parametrize("bias", [True, False])
def test_an_evaluation_has_the_bits_of_pytorchs_products_with_room_after_rows(
    rows, width, bias, products, monkeypatch
):
    monkeypatch.setattr(linear, "LEAST_PRODUCT", 1)
    torch.manual_seed(0)
    layer, x = Linear(429, width, bias=bias), torch.randn(rows, 429)
    with torch.no_grad():
        expected = nn.functional.linear(x, layer.weight, layer.bias)
        found = layer(x)
    assert len(products) == 1
    assert torch.equal(found, expected)
    assert torch.equal(torch.sigmoid(found), torch.sigmoid(expected)), "at the ends of rows, too"


def test_another_cpu_keeps_the_products_of_pytorch(products, monkeypatch):
    monkeypatch.setattr(linear, "has_faster_onednn", lambda: False)
    ours, plain = pair()
    x = torch.randn(9, 12)
    assert torch.equal(ours(x), plain(x))
    assert not products


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("AMD EPYC, avx2, avx512_bf16, avx512f", True),
        ("AMD EPYC, avx2", False),
        ("Intel Xeon, avx2, avx512f", False),
    ],
)
def test_the_cpu_alone_decides(monkeypatch, name, takes):
    monkeypatch.setattr(linear, "cpu_name", lambda: name)
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    assert linear.has_faster_onednn.__wrapped__() == (takes and there)
