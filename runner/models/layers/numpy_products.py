"""Products of matrices by NumPy, whose OpenBLAS is faster than PyTorch's MKL on some CPUs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info
from torch import Tensor

AVX512_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5")  # as OpenBLAS names


@cache
def has_avx512_openblas() -> bool:
    """Return whether NumPy's OpenBLAS runs its code for AVX-512, twice as fast as that for AVX2.

    Older versions have none for AMD's processors, and OPENBLAS_CORETYPE may choose another.
    """
    kernels = {library.get("architecture") for library in _openblas_of_numpy()}
    return bool(kernels) and kernels <= set(AVX512_KERNELS)


@cache
def multiplies_on_one_thread() -> bool:
    """Return whether NumPy's OpenBLAS has no threads of its own, see `choose_threads`."""
    return all(library.get("num_threads") == 1 for library in _openblas_of_numpy())


def _openblas_of_numpy() -> list[dict[str, Any]]:
    return [
        library
        for library in threadpool_info()
        if library["internal_api"] == "openblas" and "numpy" in library["filepath"]
    ]


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
