"""Linear maps, and first-order terms: logistic regression on ids and dense features."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Schema
from runner.machine import cpu_name
from runner.models.layers.embedding import LINEAR_COLUMNS

LEAST_PRODUCT = 1 << 25  # multiplications; smaller ones lose more to the call than they gain


class Linear(nn.Linear):
    """A linear map of [..., C], whose products are oneDNN's where it is the faster library.

    On AMD's CPUs with AVX-512 the products of PyTorch are MKL's, which takes code for AVX2 there:
    oneDNN needs 0.84 of its time forward and 0.55 to 0.86 for the gradient of the input. The
    choice depends on the CPU and the sizes and not on a measurement, so that a run repeats to the
    bit. An evaluation keeps PyTorch's products, as an exported graph has them, so that both give
    the same numbers.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., width]."""
        if takes_onednn(x, self.weight):
            product: Tensor = _OneDnnLinear.apply(  # type: ignore[no-untyped-call]
                x, self.weight, self.bias
            )
            return product
        return super().forward(x)


@cache
def has_faster_onednn() -> bool:
    """Return whether oneDNN's products are faster than PyTorch's own on this CPU."""
    name = cpu_name()
    return (
        "AMD" in name
        and "avx512f" in name
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def takes_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether a product that a training's gradient goes through is oneDNN's."""
    return (
        not torch.compiler.is_compiling()  # the compiler chooses by itself
        and torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.dim() > 1
        and x.numel() * weight.shape[0] >= LEAST_PRODUCT
        and not torch.is_autocast_enabled("cpu")
        and has_faster_onednn()
    )


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, by_onednn: bool) -> Tensor:
    """Return [..., W] for x of [..., C], a weight of [W, C] and a bias of [W]."""
    if not by_onednn:
        return functional.linear(x, weight, bias)
    flat_BW = torch.ops.mkldnn._linear_pointwise(
        x.reshape(-1, x.shape[-1]).contiguous(), weight, bias, "none", [], ""
    )
    # No view, which what follows could not overwrite.
    product: Tensor = torch.ops.aten._unsafe_view(flat_BW, [*x.shape[:-1], weight.shape[0]])
    return product


class _OneDnnLinear(torch.autograd.Function):
    """oneDNN's product, whose operator has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return multiply(x, weight, bias, by_onednn=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        grad_BW, x_BC = grad.flatten(0, -2), x.flatten(0, -2)
        return (
            _OneDnnLinear.apply(grad, weight.t(), None)  # type: ignore[no-untyped-call]
            if needs_x
            else None,
            grad_BW.t() @ x_BC if needs_weight else None,
            grad_BW.sum(0) if ctx.has_bias else None,
        )


class StackedLinear(Linear):
    """Linear maps of one input, computed as one, with their outputs side by side.

    Args:
        num_inputs: width of the input.
        num_outputs: width of all outputs.
        num_stacked: number of the maps, for `init_linear_layers`.
        bias: whether they have biases.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, *, num_stacked: int, bias: bool = True
    ) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.num_stacked = num_stacked


class FirstOrder(nn.Module):
    """The sum of one weight per id, plus a linear function of the dense features.

    FBGEMM stores no table of width 1, so a weight is stored as LINEAR_COLUMNS equal columns. All
    start at 0, and each gets the gradient of the weight itself, so they stay equal. Their mean is
    then exactly a table of width 1 under every table optimizer, also under those that take a norm
    or a mean over a row. A table padded with unused columns would learn twice as fast under
    row-wise Adagrad.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.dense = nn.Linear(len(schema.dense), 1) if schema.dense else None

    def forward(self, linear_BE: Tensor, dense_B: Tensor) -> Tensor:
        """Return [B, 1].

        Args:
            linear_BE: [B, number of sparse features x LINEAR_COLUMNS], see `TableLookup`.
            dense_B: [B, number of dense features].
        """
        sum_B1 = linear_BE.sum(1, keepdim=True)
        # the value of a mean, the gradient of a sum
        term_B1 = sum_B1 - sum_B1.detach() * (1 - 1 / LINEAR_COLUMNS)
        return term_B1 if self.dense is None else term_B1 + self.dense(dense_B)
