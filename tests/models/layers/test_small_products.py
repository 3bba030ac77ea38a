"""Products of pairs of small matrices are torch's, whichever library computes them."""

from __future__ import annotations

import warnings

import pytest
import torch

from runner.models.layers import dot, numpy_products, small_products
from runner.models.layers.dot import DotInteraction
from runner.models.layers.small_products import multiply_pairs


@pytest.fixture(params=["numpy for AVX-512", "numpy", "torch"])
def library(request, monkeypatch):
    is_numpy, has_avx512 = request.param != "torch", request.param == "numpy for AVX-512"
    monkeypatch.setattr(small_products, "has_faster_onednn", lambda: is_numpy)
    monkeypatch.setattr(small_products, "takes_numpy_alone", lambda *_: False)
    for module in (small_products, dot):
        monkeypatch.setattr(module, "has_avx512_openblas", lambda: has_avx512)
    calls = []
    for module in (small_products, dot):
        made = module.multiply_by_numpy
        monkeypatch.setattr(
            module, "multiply_by_numpy", lambda *a, f=made: calls.append(a) or f(*a)
        )
    yield request.param
    assert bool(calls) == is_numpy


SHAPES = [  # M, K, N, with heads between the rows and the matrices or not
    ((6,), 27, 16, 27),
    ((6,), 1, 10, 16),
    ((6,), 2, 8, 64),
    ((5, 2), 10, 32, 10),
    ((5, 2), 20, 4, 20),
    ((0,), 3, 4, 5),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("before", "m", "k", "n"), SHAPES)
def test_products_and_their_gradients_are_torchs(before, m, k, n, transposed, library):
    torch.manual_seed(0)
    left = torch.randn(*before, m, k, requires_grad=True)
    right = torch.randn(*before, *((n, k) if transposed else (k, n)), requires_grad=True)

    def results(multiply):
        product = multiply(left, right.transpose(-1, -2) if transposed else right)
        weights = torch.linspace(-1, 1, product.numel()).view_as(product)
        return [product, *torch.autograd.grad((product * weights).sum(), [left, right])]

    torch.testing.assert_close(results(multiply_pairs), results(torch.matmul))


def test_heads_that_lie_side_by_side_need_no_copy(library):
    torch.manual_seed(0)
    parts = torch.randn(3, 4, 2 * 6, requires_grad=True)
    heads = parts.unflatten(2, (2, 6)).transpose(1, 2)
    product = multiply_pairs(heads, heads.transpose(2, 3))
    torch.testing.assert_close(product, torch.matmul(heads, heads.transpose(2, 3)))
    (found,) = torch.autograd.grad(product.square().sum(), parts)
    (expected,) = torch.autograd.grad((heads @ heads.transpose(2, 3)).square().sum(), parts)
    torch.testing.assert_close(found, expected)


def test_gradients_of_gradients_are_those_of_a_product(library):
    left, right = (torch.randn(2, 3, 3, requires_grad=True) for _ in range(2))

    def penalty(multiply):
        (grad,) = torch.autograd.grad(multiply(left, right).tanh().sum(), left, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [left, right])

    torch.testing.assert_close(penalty(multiply_pairs), penalty(torch.matmul))


def test_evaluations_autocast_large_matrices_and_other_types_keep_torchs(monkeypatch):
    monkeypatch.setattr(small_products, "has_faster_onednn", lambda: True)
    monkeypatch.setattr(small_products, "takes_numpy_alone", lambda *_: False)
    monkeypatch.setattr(small_products, "multiply_by_numpy", None)
    pair = [torch.randn(2, 5, 5, requires_grad=True) for _ in range(2)]
    with torch.no_grad():
        assert torch.equal(multiply_pairs(*pair), torch.bmm(*pair))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert multiply_pairs(*pair).dtype == torch.bfloat16
    assert multiply_pairs(*(matrix.double() for matrix in pair)).dtype == torch.float64
    large = torch.randn(2, 90, 90)
    assert torch.equal(multiply_pairs(large, large), torch.bmm(large, large))


@pytest.mark.parametrize("num_vectors", [2, 3, 4, 27, 28])
@pytest.mark.parametrize("at_a_time", [1, 2_000, 400_000])
def test_dot_products_are_those_of_the_whole_matrix(num_vectors, at_a_time, library, monkeypatch):
    monkeypatch.setitem(small_products._NUMBERS_AT_A_TIME, "cpu", at_a_time)
    torch.manual_seed(0)
    x = torch.randn(13, num_vectors, 6, requires_grad=True)
    interaction = DotInteraction(num_vectors)
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1)

    def results(pairs):
        weights = torch.linspace(-1, 1, pairs.numel()).view_as(pairs)
        return [pairs, *torch.autograd.grad((pairs * weights).sum(), x)]

    expected = results((x @ x.transpose(1, 2))[:, row, column])
    torch.testing.assert_close(results(interaction(x)), expected)
    with torch.no_grad():  # as what is exported
        exported = torch.bmm(x, x.transpose(1, 2)).flatten(1).index_select(1, interaction.lower_P)
        assert torch.equal(interaction(x), exported)


def test_what_overflows_is_torchs_too_and_brings_no_warning(library):
    left = torch.tensor([[[1e30, 1.0], [float("inf"), -1.0]]], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = multiply_pairs(left, left.transpose(1, 2))
    torch.testing.assert_close(found, left @ left.transpose(1, 2), equal_nan=True)


@pytest.mark.parametrize("kernels", [["SkylakeX"], ["Haswell"], ["SkylakeX", "Haswell"], []])
def test_only_code_for_avx512_of_numpys_own_library_gets_transposed_copies(kernels, monkeypatch):
    """That of another library in the process, such as SciPy's, says nothing about NumPy's."""
    of_numpy = [
        {"internal_api": "openblas", "architecture": name, "filepath": "/numpy.libs/libopenblas.so"}
        for name in kernels
    ]
    others = [
        {"internal_api": "openblas", "architecture": "SkylakeX", "filepath": "/scipy.libs/lib.so"},
        {"internal_api": "mkl", "filepath": "/numpy/libmkl_rt.so"},
    ]
    monkeypatch.setattr(numpy_products, "threadpool_info", lambda: of_numpy + others)
    assert numpy_products.has_avx512_openblas.__wrapped__() == (kernels == ["SkylakeX"])
