"""Products of many pairs of small matrices, such as those of each row's vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from runner.models.layers.linear import has_faster_onednn, takes_numpy_alone
from runner.models.layers.numpy_products import (
    has_avx512_openblas,
    multiply_by_numpy,
    transpose_copy,
)

# How many numbers are computed at a time. On CPU they stay in a core's cache, which makes a step of
# CIN several times as fast as computing all of them. A GPU needs few large kernels.
_NUMBERS_AT_A_TIME = {"cpu": 400_000, "cuda": 64_000_000}
LARGEST = (1 << 19) - 1  # multiplications of a pair; for more, OpenBLAS uses threads of its own
LARGEST_TRANSPOSED = 16  # rows and columns of a product whose right matrix is transposed


def numbers_at_a_time(device: torch.device) -> int:
    """Return how many numbers a layer should compute at a time if it does not keep them."""
    return _NUMBERS_AT_A_TIME.get(device.type, _NUMBERS_AT_A_TIME["cuda"])


def multiply_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of each pair of matrices, [..., M, N].

    In training on a CPU where PyTorch's products, MKL's, use code for AVX2 (see `Linear`),
    those of small matrices are NumPy's, whose OpenBLAS needs a third to two thirds of the time. An
    evaluation uses PyTorch's, as an exported graph does.

    Args:
        left: [..., M, K].
        right: [..., K, N], with the same leading dimensions.
    """
    if (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and takes_numpy(left, right)
    ):
        product: Tensor = _PairProducts.apply(left, right)  # type: ignore[no-untyped-call]
        return product
    return left @ right


def takes_numpy(left: Tensor, right: Tensor) -> bool:
    """Return whether NumPy is the faster library for products in training."""
    return (
        left.is_cpu
        and left.dtype == right.dtype == torch.float32
        and math.prod(left.shape[-2:]) * right.shape[-1] <= LARGEST
        and has_faster_onednn()
    ) or takes_numpy_alone(left, right)


def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of each pair in training, written into `out` if given; no gradient."""
    if takes_numpy(left, right):
        return multiply_by_numpy(left, right, out)
    return torch.matmul(left, right, out=out)


class _PairProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        (*_, num_rows, num_shared), num_columns = left.shape, right.shape[-1]
        if num_shared == 1:  # OpenBLAS is not faster there
            return left @ right
        if right.stride(-1) != 1 and max(num_rows, num_columns) > LARGEST_TRANSPOSED:
            if not has_avx512_openblas():  # nor there
                return left @ right
            right = transpose_copy(right.transpose(-1, -2))
        return multiply_by_numpy(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        needs_left, needs_right = ctx.needs_input_grad
        return (
            _PairProducts.apply(  # type: ignore[no-untyped-call]
                grad, right.transpose(-1, -2)
            )
            if needs_left
            else None,
            _PairProducts.apply(  # type: ignore[no-untyped-call]
                left.transpose(-1, -2), grad
            )
            if needs_right
            else None,
        )
