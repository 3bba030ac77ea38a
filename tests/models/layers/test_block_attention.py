"""Attention in blocks has the outputs and gradients of whole matrices, and drops by rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.models.layers import attention
from runner.models.layers.attention import SiluWeights, SoftmaxWeights, attend, attends_in_blocks
from runner.models.layers.row_draws import RowDraws, row_draws
from runner.models.layers.transformer import CausalBlock, PostNormBlock

ROWS, HEADS, WIDTH = 5, 2, 8


def heads(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(length)
    return tuple(
        torch.randn(ROWS, length, HEADS, WIDTH, dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    )


def whole_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    is_later = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).triu(1)
    scores = (query @ key.transpose(2, 3)).masked_fill(is_later, -math.inf)
    return scores.softmax(3) @ value


@pytest.mark.parametrize("length", [1, 2, 17, 70, 200])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_places_that_all_see_are_those_of_a_mask(length, dtype):
    given = heads(length, dtype)
    is_seen = torch.arange(length) < torch.tensor([1, length, length // 2 + 1, length, 1])[:, None]
    ours = attend(*given, SoftmaxWeights(is_seen_BL=is_seen))
    scaled = given[0] * math.sqrt(WIDTH), *given[1:]
    whole = functional.scaled_dot_product_attention(*scaled, attn_mask=is_seen[:, None, None])
    torch.testing.assert_close(with_gradients(ours, *given), with_gradients(whole, *given))


def whole_silu(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    scores = query @ key.transpose(2, 3) + bias
    return (scores * scores.sigmoid() / 50).tril() @ value


def with_gradients(mixed: Tensor, *inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    return [mixed, *torch.autograd.grad(mixed, inputs, torch.randn(mixed.shape, dtype=mixed.dtype))]


@pytest.mark.parametrize("length", [1, 2, 17, 70, 200])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_softmax_is_that_of_whole_matrices(length, dtype):
    given = heads(length, dtype)
    ours = with_gradients(attend(*given, SoftmaxWeights(0.0)), *given)
    torch.testing.assert_close(ours, with_gradients(whole_softmax(*given), *given))


@pytest.mark.parametrize("length", [1, 2, 17, 70, 200])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_silu_is_that_of_whole_matrices(length, dtype):
    given = heads(length, dtype)
    bias = torch.randn(length, length, dtype=dtype, requires_grad=True)
    ours = attend(*given, SiluWeights(50), bias)
    torch.testing.assert_close(
        with_gradients(ours, *given, bias),
        with_gradients(whole_silu(*given, bias), *given, bias),
    )


def test_a_score_of_any_size_lets_no_later_place_in():
    given = [(100 * x).detach().requires_grad_() for x in heads(70)]
    bias = torch.zeros(70, 70, dtype=torch.float64, requires_grad=True)
    ours, whole = attend(*given, SiluWeights(50), bias), whole_silu(*given, bias)
    torch.testing.assert_close(
        with_gradients(ours, *given, bias), with_gradients(whole, *given, bias)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_of_gradients_are_refused_and_not_left_out(dtype):
    query, key, value = heads(70, dtype)
    mixed = attend(query, key, value, SoftmaxWeights(0.0))
    (of_query,) = torch.autograd.grad(mixed.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (of_query.square().sum() + mixed.sum()).backward()


@pytest.mark.parametrize("length", [17, 200])
def test_parts_of_the_rows_drop_what_all_rows_drop(length):
    given = heads(length, torch.float32)

    def run(start: int, stop: int) -> list[Tensor]:
        parts = [x.detach()[start:stop].requires_grad_() for x in given]
        with row_draws(RowDraws(7, start, stop - start)):
            mixed = attend(*parts, SoftmaxWeights(0.5))
        return [mixed, *torch.autograd.grad(mixed.square().sum(), parts)]

    whole, first, second = run(0, ROWS), run(0, 2), run(2, ROWS)
    for all_rows, *parts in zip(whole, first, second, strict=True):
        assert torch.equal(all_rows, torch.cat(parts))
    assert not torch.equal(whole[0], attend(*given, SoftmaxWeights(0.0)))


def test_dropout_keeps_the_mean_and_its_gradient_is_that_of_the_kept_weights():
    query, key, value = heads(70)
    torch.manual_seed(1)
    runs = torch.stack(
        [attend(query, key, value, SoftmaxWeights(0.25)).detach() for _ in range(400)]
    )
    error = runs.mean(0) - whole_softmax(query, key, value)
    assert (error.abs() < 6 * runs.std(0) / math.sqrt(len(runs)) + 1e-9).all()

    def once(*given: Tensor) -> Tensor:
        with row_draws(RowDraws(3, 0, ROWS)):
            return attend(*given, SoftmaxWeights(0.25))

    assert torch.autograd.gradcheck(once, heads(5))


def test_bfloat16_sums_and_weighs_in_float32():
    given = [x.detach().bfloat16().requires_grad_() for x in heads(70, torch.float32)]
    bias = torch.zeros(70, 70, requires_grad=True)
    exact = [x.detach().float().requires_grad_() for x in given]
    for ours, whole in (
        (attend(*given, SoftmaxWeights(0.0)), whole_softmax(*exact)),
        (attend(*given, SiluWeights(50), bias), whole_silu(*exact, bias)),
    ):
        assert ours.dtype == torch.bfloat16
        found, expected = with_gradients(ours.float(), *given), with_gradients(whole, *exact)
        for one, other in zip(found, expected, strict=True):
            assert (one.float() - other).norm() < 0.02 * other.norm()


class CountedBlocks(SiluWeights):
    def __init__(self) -> None:
        super().__init__(50)
        self.count = 0

    def keep(self, scores, block):
        self.count += 1
        return super().keep(scores, block)


@pytest.mark.parametrize(("length", "width"), [(1024, 64), (2048, 64), (600, 800)])
def test_long_sequences_have_no_block_for_each_few_places(length, width):
    query = torch.ones(1, 1, length, width)
    weighting = CountedBlocks()
    attend(query, query, query, weighting)
    assert weighting.count <= length / 16


def test_short_sequences_have_blocks_where_products_are_numpys(monkeypatch):
    causal, query = CausalBlock(16, 2, 0.0).train(), torch.randn(2, 1, 64, 16)
    for is_faster in (False, True):
        monkeypatch.setattr(attention, "has_faster_onednn", lambda value=is_faster: value)
        assert attends_in_blocks(causal, query, is_fused=True) == is_faster
        assert attends_in_blocks(causal, query)


def test_long_sequences_keep_no_weights_where_pytorch_has_one_operation():
    x, is_seen = torch.randn(2, 65, 16), torch.arange(65) < torch.tensor([[65], [3]])
    masked, causal = PostNormBlock(16, 2, 0.0, 16, nn.ReLU()), CausalBlock(16, 2, 0.0)
    for block, given in ((masked, (x, is_seen)), (causal, (x,))):
        assert torch.equal(block.train()(*given), block.eval()(*given))
    causal.train()
    assert not attends_in_blocks(causal, x[:, None], is_fused=True)
    assert attends_in_blocks(causal, x[:, None])
