"""Linear maps, and first-order terms: logistic regression on ids and dense features."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Schema
from runner.machine.cores import cpu_name
from runner.models.layers.embedding import count_equal_columns
from runner.models.layers.numpy_products import (
    has_avx512_openblas,
    multiplies_on_one_thread,
    multiply_by_numpy,
)

LEAST_PRODUCT = 1 << 25  # multiplications; for smaller products the call costs more than it saves
LEAST_PADDED = 128  # numbers of a row; shorter ones are not padded
ALIGNED, PADDED = 8, 16  # rows that are no multiple of the first are padded to one of the second


def in_full_precision(device_type: str) -> AbstractContextManager[object]:
    """Turn autocast off; do nothing if it is off, as in an export, whose graph would contain it."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class Linear(nn.Linear):
    """A linear map of [..., C], whose products in training use the fastest method on a CPU.

    They use oneDNN where it is the faster library: on AMD's CPUs with AVX-512 the products of
    PyTorch are MKL's, which uses code for AVX2 there, and oneDNN needs 0.84 of its time forward
    and 0.55 to 0.86 for the gradient of the input. Elsewhere rows of odd widths, such as the 429
    of 26 embeddings of 16 and 13 numbers, are padded when written, see `multiply`.

    The choice depends on the CPU and the sizes, not on a measurement, so that results are
    reproducible to the bit. Evaluation uses PyTorch's products, as an exported graph does, so that
    both give the same numbers; padding changes none, and is removed afterwards.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., width]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the linear map of `Linear` of [..., C] by a weight of [W, C] and a bias of [W]."""
    by_onednn = takes_onednn(x, weight)
    if by_onednn or _takes_padding(x, weight):
        if not torch.is_grad_enabled():
            # a sigmoid and similar functions give other bits at the ends of padded rows
            return multiply(x, weight, bias, by_onednn=False).contiguous()
        product: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, by_onednn
        )
        return product
    return functional.linear(x, weight, bias)


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
    """Return whether oneDNN computes a product that training differentiates."""
    return torch.is_grad_enabled() and _is_large_on_cpu(x, weight) and has_faster_onednn()


def takes_numpy_alone(left: Tensor, right: Tensor) -> bool:
    """Return whether a product of NumPy in training takes half of the time of PyTorch's.

    Both use one thread then, as where rows are in threads of their own. OpenBLAS also needs less
    for the gradient of a weight than oneDNN, which would copy both of its factors.
    """
    return (
        left.is_cpu
        and left.dtype == right.dtype == torch.float32
        and has_faster_onednn()
        and has_avx512_openblas()
        and multiplies_on_one_thread()
        and torch.get_num_threads() == 1
    )


def _takes_padding(x: Tensor, weight: Tensor) -> bool:
    """Return whether rows of a product, or of the gradient of its input, are padded."""
    return any(_is_odd(width) for width in weight.shape) and _is_large_on_cpu(x, weight)


def _is_odd(width: int) -> bool:
    return width >= LEAST_PADDED and width % ALIGNED != 0


def _is_large_on_cpu(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()  # the compiler chooses by itself
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.dim() > 1
        and _is_large(x, weight)
        and not torch.is_autocast_enabled("cpu")
    )


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return x.numel() * weight.shape[0] >= LEAST_PRODUCT


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, by_onednn: bool) -> Tensor:
    """Return [..., W] for x of [..., C], a weight of [W, C] and a bias of [W].

    MKL takes up to 1.8 times as long if rows of the result do not begin at aligned addresses.
    """
    width = weight.shape[0]
    shape = [*x.shape[:-1], width]
    if by_onednn:
        flat_BW = torch.ops.mkldnn._linear_pointwise(
            x.reshape(-1, x.shape[-1]).contiguous(), weight, bias, "none", [], ""
        )
        # Not a view, since later operations could not overwrite one.
        product: Tensor = torch.ops.aten._unsafe_view(flat_BW, shape)
        return product
    if not (_is_odd(width) and _is_large(x, weight) and x.dtype == torch.float32):
        return functional.linear(x, weight, bias)
    strides = torch.empty([*shape[:-1], -(-width // PADDED) * PADDED], device="meta").stride()
    product = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    flat_BC, flat_BW = x.flatten(0, -2), product.flatten(0, -2)
    if bias is None:
        torch.mm(flat_BC, weight.t(), out=flat_BW)
    else:
        torch.addmm(bias, flat_BC, weight.t(), out=flat_BW)
    return product


class _Product(torch.autograd.Function):
    """`multiply`, whose operations have no gradient of their own."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by_onednn: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.by_onednn = bias is not None, by_onednn
        return multiply(x, weight, bias, by_onednn=by_onednn)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        grad_BW, x_BC = grad.flatten(0, -2), x.flatten(0, -2)
        return (
            _Product.apply(  # type: ignore[no-untyped-call]
                grad, weight.t(), None, ctx.by_onednn
            )
            if needs_x
            else None,
            weight_gradient(grad_BW, x_BC) if needs_weight else None,
            grad_BW.sum(0) if ctx.has_bias else None,
            None,
        )


def weight_gradient(grad_BW: Tensor, x_BC: Tensor) -> Tensor:
    """Return [W, C], also written with padded rows, and with the same bits."""
    if torch.is_grad_enabled():  # an output buffer has no gradient
        return grad_BW.t() @ x_BC
    if takes_numpy_alone(grad_BW, x_BC):
        return multiply_by_numpy(grad_BW.t(), x_BC)
    return multiply(grad_BW.t(), x_BC.t(), None, by_onednn=False).contiguous()


class StackedLinear(Linear):
    """Linear maps computed as one: of one input with concatenated outputs, or the other way round.

    Args:
        num_inputs: width of the input, or of all inputs.
        num_outputs: width of all outputs.
        num_stacked: number of the maps, for `init_linear_layers`.
        bias: whether they have biases.
        summed: whether each has a separate input, and the output is the sum of all.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        num_stacked: int,
        bias: bool = True,
        summed: bool = False,
    ) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.num_stacked, self.summed = num_stacked, summed

    def split_weight(self) -> tuple[Tensor, ...]:
        """Return the weight of each map, [out, in], without gradient."""
        return self.weight.detach().chunk(self.num_stacked, dim=int(self.summed))


def init_weight(weight: Tensor, name: str) -> None:
    """Draw a weight of shape [out, in] by the name of its initialisation."""
    if name == "normal":
        nn.init.normal_(weight, std=1e-4)
    else:
        gain = {"nonlinearity": "relu"} if name.startswith("kaiming") else {}
        getattr(nn.init, f"{name}_")(weight, **gain)


class FirstOrder(nn.Module):
    """The sum of one weight per id, plus a linear function of the dense features; or several sums.

    FBGEMM stores no table of width 1, so a weight is stored as `count_equal_columns` columns. All
    start at 0, and each gets the gradient of the weight itself, so they stay equal. Their mean is
    then exactly a table of width 1, or of one column a sum, under every table optimizer, also under
    those that take a norm or a mean over a row. A table padded with unused columns would learn
    faster under row-wise Adagrad, twice as fast in place of one of width 1.

    Args:
        num_sums: S, how many sums of weights of their own there are, see `count_first_order`.
    """

    def __init__(self, schema: Schema, num_sums: int = 1) -> None:
        super().__init__()
        self.num_sums, self.num_equal = num_sums, count_equal_columns(num_sums)
        self.dense = nn.Linear(len(schema.dense), num_sums) if schema.dense else None

    def forward(self, linear_BE: Tensor, dense_B: Tensor) -> Tensor:
        """Return [B, S].

        Args:
            linear_BE: [B, number of sparse features x S x equal columns], see `TableLookup`.
            dense_B: [B, number of dense features].
        """
        if self.num_sums == 1:
            sum_BS = linear_BE.sum(1, keepdim=True)
        else:
            shape = -1, self.num_sums, self.num_equal
            sum_BS = torch.unflatten(linear_BE, 1, shape).sum((1, 3))
        # the value of a mean, the gradient of a sum
        term_BS = sum_BS - sum_BS.detach() * (1 - 1 / self.num_equal)
        return term_BS if self.dense is None else term_BS + self.dense(dense_B)
