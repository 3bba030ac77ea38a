"""Batch norm, ReLU and the linear map after them as one operation. B rows, C and W channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from runner.models.layers.batch_norm import BatchNorm, RowStatistics
from runner.models.layers.hooks import is_hooked
from runner.models.layers.linear import Linear, multiply, takes_onednn, weight_gradient


def are_one_operation(
    modules: Sequence[nn.Module], x_BC: Tensor, weights_B: Tensor | None
) -> TypeGuard[tuple[BatchNorm, nn.ReLU, Linear]]:
    """Return whether `normed_linear` computes the output of the modules.

    Args:
        modules: consecutive modules.
        x_BC: the input of the first.
        weights_B: rows of weight 0 do not enter statistics; None: all do.
    """
    norm = modules[0]
    return (
        type(norm) is BatchNorm
        and norm.training
        and [type(module) for module in modules[1:]] == [nn.ReLU, Linear]
        and norm.is_mapped_on_cpu(x_BC)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not any(map(is_hooked, modules))
        and norm.takes_local_rows(x_BC, weights_B)
    )


def normed_linear(norm: BatchNorm, linear: Linear, x_BC: Tensor) -> Tensor:
    """Return linear(relu(norm(x))) for training, [B, W].

    The cost of a batch norm in an update is memory traffic. Here the output of the ReLU is not
    kept for the gradient but recomputed from x, which the gradient of the norm reads in any case,
    so that it never leaves the cache.
    """
    output_BW, *statistics = _NormedLinear.apply(  # type: ignore[no-untyped-call]
        *(x_BC, norm.weight, norm.bias, norm.eps),
        *(linear.weight, linear.bias, takes_onednn(x_BC, linear.weight)),
    )
    norm.take_in(*statistics)
    return output_BW  # type: ignore[no-any-return]


class _NormedLinear(torch.autograd.Function):
    """The operations of the three modules in the same order, which give the same bits."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BC: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        weight_WC: Tensor,
        bias_W: Tensor | None,
        by_onednn: bool,
    ) -> tuple[Tensor, int, Tensor, Tensor]:
        statistics = RowStatistics.of(x_BC, weight, bias, eps)
        rectified_BC = statistics.normalise(x_BC).relu_()
        ctx.save_for_backward(x_BC, weight_WC)
        ctx.statistics, ctx.by_onednn = statistics, by_onednn
        ctx.has_affine, ctx.has_bias = weight is not None, bias_W is not None
        ctx.mark_non_differentiable(statistics.mean, statistics.m2)
        output_BW = multiply(rectified_BC, weight_WC, bias_W, by_onednn=by_onednn)
        return output_BW, statistics.num_rows, statistics.mean, statistics.m2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BW: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x_BC, weight_WC = ctx.saved_tensors
        grad_BC = multiply(grad_BW, weight_WC.t(), None, by_onednn=ctx.by_onednn)
        rectified_BC = ctx.statistics.normalise(x_BC).relu_()
        grad_WC = weight_gradient(grad_BW, rectified_BC)
        torch.ops.aten.threshold_backward.grad_input(grad_BC, rectified_BC, 0, grad_input=grad_BC)
        grad_BC, *of_norm = ctx.statistics.gradients(grad_BC, x_BC)
        if not ctx.has_affine:
            of_norm = [None, None]
        return grad_BC, *of_norm, None, grad_WC, grad_BW.sum(0) if ctx.has_bias else None, None
