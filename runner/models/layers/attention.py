"""Attention among the places of a sequence, in training on a CPU.

The weights of a few rows and places are made and used while they are in a core's cache. Where a
place sees none after it, the weights of these are hardly computed. One number for each weight is
kept for the backward pass, where separate operations keep three.

B batch, R rows of a chunk, H heads, L places, A width of a head; Q places of a block, K places that
they see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from runner.models.layers.dropout import draw_kept, kept_scale
from runner.models.layers.linear import has_faster_onednn
from runner.models.layers.small_products import LARGEST, multiply

_BLOCK = 64  # most places of a block; fewer skip more of the later places, in slower products
_FEWEST = 16  # places of a block whose products are small (`LARGEST`); fewer take too many calls
_WEIGHTS = 300_000  # of a chunk's block, about what a core's cache holds


class Block(NamedTuple):
    """Places of a chunk's rows whose outputs are made together."""

    rows: slice
    start: int
    stop: int
    num_seen: int  # K, the first places of the sequence
    weights: slice  # Q * K of those of all blocks of a row and head

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """Index of the block's queries and outputs in [B, H, L, A]."""
        return self.rows, slice(None), slice(self.start, self.stop)

    @property
    def seen(self) -> tuple[slice, slice, slice]:
        """Index of the keys and values that they see."""
        return self.rows, slice(None), slice(self.num_seen)


class SoftmaxWeights:
    """Weights of values: the softmax over the places that a place sees, with a `Dropout`.

    `keep` makes of scores what is kept for the backward pass, and may overwrite them.

    Args:
        dropout: the probability.
        is_seen_BL: places that all places of a row see, at least one; None: those up to each.
    """

    def __init__(self, dropout: float = 0.0, is_seen_BL: Tensor | None = None) -> None:
        self.causal = is_seen_BL is None
        self._dropout, self._scale = dropout, kept_scale(dropout)
        self._unseen_BL: Tensor | None = None
        if is_seen_BL is not None:
            self._unseen_BL = torch.zeros(is_seen_BL.shape).masked_fill_(~is_seen_BL, -math.inf)
        self._is_kept_BHW: Tensor | None = None

    def begin(self, num_rows: int, num_heads: int, num_weights: int) -> None:
        """Draw which weights are dropped."""
        if self._dropout:
            shape = torch.Size((num_rows, num_heads, num_weights))
            pieces = [*draw_kept(self._dropout, shape)]
            self._is_kept_BHW = torch.from_numpy(np.concatenate(pieces)).view(shape)

    def keep(self, scores_RHQK: Tensor, block: Block) -> Tensor:
        """Return the softmax, [R, H, Q, K]."""
        if self._unseen_BL is None:
            size = block.stop - block.start
            scores_RHQK[..., block.start :] += torch.full((size, size), -math.inf).triu(1)
        else:
            scores_RHQK += self._unseen_BL[block.rows, None, None, :]
        return scores_RHQK.softmax(3)

    def weigh(self, kept_RHQK: Tensor, block: Block) -> Tensor:
        """Return the softmax after dropout, [R, H, Q, K]."""
        if self._is_kept_BHW is None:
            return kept_RHQK
        is_kept = self._is_kept_BHW[block.rows, :, block.weights]
        return (kept_RHQK * is_kept.view_as(kept_RHQK)).mul_(self._scale)

    def backward(self, kept_RHQK: Tensor, grad_RHQK: Tensor, block: Block) -> Tensor:
        """Return the gradient of the scores from that of the weights, [R, H, Q, K]."""
        grad_RHQK = self.weigh(grad_RHQK, block)
        grad: Tensor = torch._softmax_backward_data(grad_RHQK, kept_RHQK, 3, kept_RHQK.dtype)
        return grad


class SiluWeights:
    """silu(score) / length at the places up to the query's, as in HSTU."""

    causal = True

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, num_rows: int, num_heads: int, num_weights: int) -> None:
        """Draw nothing."""

    def keep(self, scores_RHQK: Tensor, block: Block) -> Tensor:
        """Return the scores, [R, H, Q, K], 0 at later places, whose weight is 0."""
        return scores_RHQK.tril_(block.start)

    def weigh(self, kept_RHQK: Tensor, block: Block) -> Tensor:
        """Return the weights, [R, H, Q, K]."""
        return functional.silu(kept_RHQK).div_(self._length)

    def backward(self, kept_RHQK: Tensor, grad_RHQK: Tensor, block: Block) -> Tensor:
        """Return the gradient of the scores from that of the weights, which it overwrites."""
        grad: Tensor = torch.ops.aten.silu_backward(grad_RHQK.div_(self._length), kept_RHQK)
        return grad.tril_(block.start)


def attends_in_blocks(module: nn.Module, query: Tensor, *, is_fused: bool = False) -> bool:
    """Return whether a module uses `attend`: in training on a CPU.

    Args:
        query: [B, H, L, A].
        is_fused: whether PyTorch has an operation for it that keeps no weights. It takes a third
            less time for masks of 200 places, and for thousands less memory. Up to 64 places
            `attend` is faster by NumPy's products (see `multiply_pairs`), and not by PyTorch's.
    """
    is_slower = is_fused and (query.shape[2] > _BLOCK or not has_faster_onednn())
    on_cpu = query.is_cpu and not torch.compiler.is_compiling()
    return module.training and on_cpu and not is_slower


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weighting: SoftmaxWeights | SiluWeights,
    bias_LL: Tensor | None = None,
) -> Tensor:
    """Return the sums of values by the weights of each place, [B, H, L, A].

    Args:
        query: [B, H, L, A].
        key: as query.
        value: as query.
        weighting: makes weights of scores, the products of queries and keys.
        bias_LL: added to scores.
    """
    mixed: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, bias_LL, weighting
    )
    return mixed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias_LL: Tensor | None,
        weighting: SoftmaxWeights | SiluWeights,
    ) -> Tensor:
        num_rows, num_heads, length, width = query.shape
        places = [*_divide_places(length, width, causal=weighting.causal)]
        weighting.begin(num_rows, num_heads, places[-1][-1].stop)
        rows = max(1, _WEIGHTS // num_heads // max(part.stop - part.start for *_, part in places))
        blocks = [
            Block(slice(row, row + rows), *part)
            for row in range(0, num_rows, rows)
            for part in reversed(places)
        ]
        mixed, kept = _empty_like(value), []
        for block in blocks:
            to, seen = block.queries, block.seen
            scores_RHQK = _at_least_float32(multiply(query[to], key[seen].transpose(2, 3)))
            if bias_LL is not None:
                scores_RHQK += bias_LL[block.start : block.stop, : block.num_seen]
            kept.append(weighting.keep(scores_RHQK, block))
            weights_RHQK = weighting.weigh(kept[-1], block).to(value.dtype)
            multiply(weights_RHQK, value[seen], mixed[to])
        ctx.save_for_backward(query, key, value, bias_LL, *kept)
        ctx.weighting, ctx.blocks = weighting, blocks
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias_LL, *kept_of_blocks = ctx.saved_tensors
        of_query, of_key, of_value = (_empty_like(x) for x in (query, key, value))
        of_bias_LL = None if bias_LL is None else torch.zeros_like(bias_LL)
        for block, kept in zip(ctx.blocks, kept_of_blocks, strict=True):
            to, seen = block.queries, block.seen
            weights_RHQK = ctx.weighting.weigh(kept, block).to(value.dtype)
            grad_RHQK = _at_least_float32(multiply(grad[to], value[seen].transpose(2, 3)))
            grad_RHQK = ctx.weighting.backward(kept, grad_RHQK, block)
            if of_bias_LL is not None:
                of_bias_LL[block.start : block.stop, : block.num_seen] += grad_RHQK.sum((0, 1))
            grad_RHQK = grad_RHQK.to(key.dtype)
            multiply(grad_RHQK, key[seen], of_query[to])
            for left, right, out in (
                (weights_RHQK, grad[to], of_value[seen]),
                (grad_RHQK, query[to], of_key[seen]),
            ):
                if block.stop == query.shape[2]:  # the first block of its rows
                    multiply(left.transpose(2, 3), right, out)
                else:
                    out += multiply(left.transpose(2, 3), right)
        return of_query, of_key, of_value, of_bias_LL, None


def _divide_places(
    length: int, width: int, *, causal: bool
) -> Iterator[tuple[int, int, int, slice]]:
    """Yield first and last place of each block, how many it sees, and where its weights are."""
    most = LARGEST // (length * width)
    most = min(_BLOCK, most) if most >= _FEWEST else _BLOCK
    count, offset = math.ceil(length / most), 0
    for start, stop in pairwise(length * i // count for i in range(count + 1)):
        num_seen = stop if causal else length
        num_weights = (stop - start) * num_seen
        yield start, stop, num_seen, slice(offset, offset + num_weights)
        offset += num_weights


def _empty_like(x: Tensor) -> Tensor:
    """Return an uninitialised tensor, [B, H, L, A], in the order [B, L, H, A]."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
