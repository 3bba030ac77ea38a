"""Compressed interaction network of xDeepFM (Lian et al. 2018, arXiv:1803.05170).

B batch, N fields, D embedding width, I input maps of a layer, H output maps, R = B x D
columns, of which C are computed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from runner.config_value import check_value
from runner.models.argument_types import SomeSizes
from runner.models.layers.linear import in_full_precision
from runner.models.layers.small_products import multiply, numbers_at_a_time


class CIN(nn.Module):
    """X^k_h = sum_ij W^{k,h}_ij (X^{k-1}_i * X^0_j), eq. 6; each map summed over D, eq. 7 and 8.

    The activation is the identity, the paper's best. It computes in float32 even under autocast.
    Training sums over N first, by one matrix product. Evaluation multiplies by W last, as
    an exported graph does, so that both give the same numbers.

    Args:
        num_fields: N.
        num_maps: H of each layer.

    Raises:
        ValueError: if there is no layer, or a layer has less than one map.
    """

    def __init__(self, num_fields: int, num_maps: Sequence[int]) -> None:
        super().__init__()
        check_value("cin", num_maps, SomeSizes)
        inputs = [num_fields, *num_maps]
        self.layers = nn.ModuleList(
            nn.Linear(before * num_fields, after, bias=False)
            for before, after in zip(inputs, num_maps)
        )
        self.width = sum(num_maps)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, sum of H]."""
        dim = x_BND.shape[2]
        trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        x0_NR = x_BND.transpose(0, 1).flatten(1).float()
        x_HR, sums_HB = x0_NR, []
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x_HR = (compress if trains else multiply_last)(x_HR, x0_NR, layer.weight)
            sums_HB.append(torch.unflatten(x_HR, 1, (-1, dim)).sum(2))
        return torch.cat(sums_HB).t()


def compress(x_IR: Tensor, x0_NR: Tensor, weight_HP: Tensor) -> Tensor:
    """Return [H, R]: W times the P = I x N products of an element of x and one of x0, per column.

    The first layer's x is x0 itself, the same tensor.
    """
    if x_IR is x0_NR:
        out_HR: Tensor = _CompressSquares.apply(x0_NR, weight_HP)  # type: ignore[no-untyped-call]
    else:
        out_HR = _Compress.apply(x_IR, x0_NR, weight_HP)  # type: ignore[no-untyped-call]
    return out_HR


def multiply_last(x_IR: Tensor, x0_NR: Tensor, weight_HP: Tensor) -> Tensor:
    """Return the result of `compress`, computed from explicit products."""
    x_RI, x0_RN = x_IR.t(), x0_NR.t().contiguous()

    def product(part: slice) -> Tensor:
        pairs_CP = (x_RI[part, :, None] * x0_RN[part, None, :]).flatten(1)
        return functional.linear(pairs_CP, weight_HP)  # of rows: any number gives the same bits

    with in_full_precision(x_IR.device.type):
        if torch.compiler.is_compiling():
            return product(slice(None)).t()
        step = _columns_at_a_time(x_IR, weight_HP.shape[1])
        starts = range(0, max(x_IR.shape[1], 1), step)
        return torch.cat([product(slice(start, start + step)) for start in starts]).t()


class _Compress(torch.autograd.Function):
    """Computes sums over N by a matrix product, whose H x I results are multiplied by x per column.

    The backward recomputes them, since keeping them would cost H x I x R numbers.
    """

    @staticmethod
    def forward(ctx: Any, x_IR: Tensor, x0_NR: Tensor, weight_HP: Tensor) -> Tensor:
        ctx.save_for_backward(x_IR, x0_NR, weight_HP)
        return _forward(x_IR, x0_NR, weight_HP.view(-1, len(x0_NR)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_HR: Tensor) -> tuple[Tensor, ...]:
        x_IR, x0_NR, weight_HP = ctx.saved_tensors
        grad_x0 = torch.empty_like(x0_NR)
        weight = weight_HP.view(-1, len(x0_NR))
        grad_x, grad_weight = _backward(grad_HR, x_IR, x0_NR, weight, grad_x0)
        return grad_x, grad_x0, grad_weight.view_as(weight_HP)


class _CompressSquares(torch.autograd.Function):
    """Does the same if x is x0: with weights that are symmetric in ij, one gradient is both."""

    @staticmethod
    def forward(ctx: Any, x_NR: Tensor, weight_HP: Tensor) -> Tensor:
        ctx.save_for_backward(x_NR, weight_HP)
        return _forward(x_NR, x_NR, _symmetric(weight_HP, len(x_NR)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_HR: Tensor) -> tuple[Tensor, ...]:
        x_NR, weight_HP = ctx.saved_tensors
        weight = _symmetric(weight_HP, len(x_NR))
        grad_x, grad_weight = _backward(grad_HR, x_NR, x_NR, weight, None)
        return grad_x.mul_(2), grad_weight.view_as(weight_HP)


def _symmetric(weight_HP: Tensor, num_fields: int) -> Tensor:
    """Return [H x N, N], the mean of each map's weights and their transpose."""
    weight_HNN = weight_HP.view(-1, num_fields, num_fields)
    return ((weight_HNN + weight_HNN.transpose(1, 2)) / 2).flatten(0, 1)


def _forward(x_IR: Tensor, x0_NR: Tensor, weight: Tensor) -> Tensor:
    """Return [H, R]; the weight is [H x I, N]."""
    out_HR = x_IR.new_empty(len(weight) // len(x_IR), x_IR.shape[1])
    for columns, sums_HIC in _chunks(x_IR, len(weight)):
        multiply(weight, x0_NR[:, columns], sums_HIC.flatten(0, 1))
        torch.sum(sums_HIC.mul_(x_IR[:, columns]), 1, out=out_HR[:, columns])
    return out_HR


def _backward(
    grad_HR: Tensor, x_IR: Tensor, x0_NR: Tensor, weight: Tensor, grad_x0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and the weight, and write that of x0 unless it is None."""
    grad_x = torch.empty_like(x_IR)
    # with the long side as columns MKL is half as fast again
    grad_weight = weight.new_zeros(len(x0_NR), len(weight))
    for columns, sums_HIC in _chunks(x_IR, len(weight)):
        flat = sums_HIC.flatten(0, 1)
        grad_H1C, x0_NC = grad_HR[:, None, columns], x0_NR[:, columns]
        multiply(weight, x0_NC, flat)
        torch.sum(sums_HIC.mul_(grad_H1C), 0, out=grad_x[:, columns])
        torch.mul(grad_H1C, x_IR[:, columns], out=sums_HIC)
        grad_weight.addmm_(x0_NC, flat.t())
        if grad_x0 is not None:
            multiply(weight.t(), flat, grad_x0[:, columns])
    return grad_x, grad_weight.t().contiguous()


def _chunks(x_IR: Tensor, num_sums: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield columns, and space for their [H, I, C] sums that the next ones reuse."""
    num_inputs, num_columns = x_IR.shape
    step = min(max(num_columns, 1), _columns_at_a_time(x_IR, num_sums))
    room = x_IR.new_empty(num_sums * step)
    for start in range(0, num_columns, step):
        end = min(start + step, num_columns)
        yield slice(start, end), room[: num_sums * (end - start)].view(-1, num_inputs, end - start)


def _columns_at_a_time(x_IR: Tensor, numbers_of_column: int) -> int:
    return max(1, numbers_at_a_time(x_IR.device) // numbers_of_column)
