"""Products of many pairs of small matrices, such as those of each row's vectors."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info
from torch import Tensor

from runner.models.layers.linear import has_faster_onednn

# How many numbers are computed at a time. On CPU they stay in a core's cache, which makes a step of
# CIN several times as fast as computing all of them. A GPU needs few large kernels.
_NUMBERS_AT_A_TIME = {"cpu": 400_000, "cuda": 64_000_000}
LARGEST = (1 << 19) - 1  # multiplications of a pair; for more, OpenBLAS uses threads of its own
LARGEST_TRANSPOSED = 16  # rows and columns of a product whose right matrix is transposed
AVX512_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5")  # as OpenBLAS names


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
    )


@cache
def has_avx512_openblas() -> bool:
    """Return whether NumPy's OpenBLAS runs its code for AVX-512, twice as fast as that for AVX2.

    Older versions have none for AMD's processors, and OPENBLAS_CORETYPE may choose another.
    """
    kernels = [
        library.get("architecture")
        for library in threadpool_info()
        if library["internal_api"] == "openblas" and "numpy" in library["filepath"]
    ]
    return bool(kernels) and set(kernels) <= set(AVX512_KERNELS)


def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of each pair in training, written into `out` if given; no gradient."""
    if takes_numpy(left, right):
        return multiply_by_numpy(left, right, out)
    return torch.matmul(left, right, out=out)


def multiply_by_numpy(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of each pair, written into `out` if given; without a gradient."""
    if out is None:
        out = left.new_empty(*left.shape[:-1], right.shape[-1])
    with np.errstate(all="ignore"):  # the runner reports non-finite values, not NumPy
        np.matmul(left.detach().numpy(), right.detach().numpy(), out=out.numpy())
    return out


def transpose_copy(x: Tensor) -> Tensor:
    """Return a copy of each matrix, transposed, [..., N, M], by which OpenBLAS multiplies faster.

    Args:
        x: [..., M, N], float32 on a CPU.
    """
    return torch.from_numpy(np.ascontiguousarray(x.detach().numpy().swapaxes(-1, -2)))


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
