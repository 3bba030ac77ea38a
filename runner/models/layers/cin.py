"""Compressed interaction network of xDeepFM (Lian et al. 2018, arXiv:1803.05170).

B batch, N fields, D embedding width, H feature maps of a layer, R = B x D rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from runner.models.layers.sizes import check_sizes

# How many products of pairs are held at a time. On CPU they stay in a core's cache, which makes a
# step four times as fast as writing out all R x H x N of them. A GPU wants few large kernels.
_PAIRS_AT_A_TIME = {"cpu": 400_000, "cuda": 64_000_000}


class CIN(nn.Module):
    """X^k_h = sum_ij W^{k,h}_ij (X^{k-1}_i * X^0_j), eq. 6; each map summed over D, eq. 7 and 8.

    The activation is the identity, the paper's best. It computes in float32 also under autocast.

    Args:
        num_fields: N.
        num_maps: H of each layer.

    Raises:
        ValueError: if there is no layer, or a layer has less than one map.
    """

    def __init__(self, num_fields: int, num_maps: Sequence[int]) -> None:
        super().__init__()
        check_sizes(cin=num_maps)
        if not num_maps:
            raise ValueError("cin=[]: needs at least one layer")
        inputs = [num_fields, *num_maps]
        self.layers = nn.ModuleList(
            nn.Linear(before * num_fields, after, bias=False)
            for before, after in zip(inputs, num_maps)
        )
        self.width = sum(num_maps)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, sum of H]."""
        dim = x_BND.shape[2]
        x0_RN = x_BND.transpose(1, 2).flatten(0, 1).float()
        x_RH, sums_BH = x0_RN, []
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x_RH = compress(x_RH, x0_RN, layer.weight)
            sums_BH.append(torch.unflatten(x_RH, 0, (-1, dim)).sum(1))
        return torch.cat(sums_BH, dim=1)


def compress(x_RI: Tensor, x0_RN: Tensor, weight_HP: Tensor) -> Tensor:
    """Return [R, H]: W times the P = I x N products of an element of x and one of x0, per row."""
    if torch.compiler.is_compiling():  # the compiler fuses what the loop below keeps in the cache
        return nn.functional.linear((x_RI[:, :, None] * x0_RN[:, None, :]).flatten(1), weight_HP)
    out_RH: Tensor = _Compress.apply(x_RI, x0_RN, weight_HP)  # type: ignore[no-untyped-call]
    return out_RH


class _Compress(torch.autograd.Function):
    """The backward computes the products again: keeping them would cost R x P numbers."""

    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, x0_RN: Tensor, weight_HP: Tensor) -> Tensor:
        ctx.save_for_backward(x_RI, x0_RN, weight_HP)
        out_RH = x_RI.new_empty(len(x_RI), len(weight_HP))
        pairs = _buffer(x_RI, x0_RN)
        for rows in _chunks(x_RI, pairs):
            pairs_RP = _products(x_RI[rows], x0_RN[rows], pairs)
            torch.mm(pairs_RP, weight_HP.t(), out=out_RH[rows])
        return out_RH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RH: Tensor) -> tuple[Tensor, ...]:
        x_RI, x0_RN, weight_HP = ctx.saved_tensors
        grad_RH = grad_RH.contiguous()
        grad_x, grad_x0 = torch.empty_like(x_RI), torch.empty_like(x0_RN)
        grad_weight = torch.zeros_like(weight_HP)
        pairs, grad_pairs = _buffer(x_RI, x0_RN), _buffer(x_RI, x0_RN)
        for rows in _chunks(x_RI, pairs):
            pairs_RP = _products(x_RI[rows], x0_RN[rows], pairs)
            grad_weight.addmm_(grad_RH[rows].t(), pairs_RP)
            part = grad_pairs[: len(pairs_RP)]
            torch.mm(grad_RH[rows], weight_HP, out=part.flatten(1))
            torch.bmm(part, x0_RN[rows, :, None], out=grad_x[rows, :, None])
            torch.bmm(x_RI[rows, None, :], part, out=grad_x0[rows, None, :])
        return grad_x, grad_x0, grad_weight


def _buffer(x_RI: Tensor, x0_RN: Tensor) -> Tensor:
    num_pairs = x_RI.shape[1] * x0_RN.shape[1]
    at_a_time = _PAIRS_AT_A_TIME.get(x_RI.device.type, _PAIRS_AT_A_TIME["cuda"])
    num_rows = min(len(x_RI), max(1, at_a_time // num_pairs))
    return x_RI.new_empty(num_rows, x_RI.shape[1], x0_RN.shape[1])


def _chunks(x_RI: Tensor, buffer: Tensor) -> list[slice]:
    step = max(1, len(buffer))
    return [slice(start, start + step) for start in range(0, len(x_RI), step)]


def _products(x_RI: Tensor, x0_RN: Tensor, buffer: Tensor) -> Tensor:
    """Return the products of pairs, [R, P], written into the buffer."""
    out = buffer[: len(x_RI)]
    return torch.mul(x_RI[:, :, None], x0_RN[:, None, :], out=out).flatten(1)
