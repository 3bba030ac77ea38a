"""Products in bf16 on CPUs that have no instructions for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from runner.models.layers.linear import linear

_aten = torch.ops.aten
# All products that autocast gives a low precision on a CPU, but for convolutions.
_PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "linear": linear,
    "matmul": _aten.matmul.default,
    "mm": _aten.mm.default,
    "bmm": _aten.bmm.default,
    "addmm": _aten.addmm.default,
    "baddbmm": _aten.baddbmm.default,
    "addbmm": _aten.addbmm.default,
    "scaled_dot_product_attention": _aten.scaled_dot_product_attention.default,
}
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)


def lacks_bf16(cpu: str) -> bool:
    """Return whether a processor of this name, with its extensions, has none for bf16."""
    return "avx2" in cpu and "bf16" not in cpu


@cache
def multiply_by_float32() -> Library:
    """Let autocast on a CPU multiply in float32, from now on and in all of this process.

    Factors, results and gradients are rounded to the low precision as ever; between them the
    product is computed in float32, in which instructions for bf16 sum as well. Without such
    instructions PyTorch's own products in bf16 take three to nine times as long.

    Returns:
        What holds the products, for as long as it lives.
    """
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that its own products are replaced
        for name, multiply in _PRODUCTS.items():
            library.impl(  # type: ignore[no-untyped-call]
                name, _by_float32(multiply), "AutocastCPU"
            )
    return library


def _by_float32(multiply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def multiply_rounded(*args: Any, **more: Any) -> Tensor:
        low = torch.get_autocast_dtype("cpu")

        def rounded(value: Any) -> Any:
            is_rounded = isinstance(value, Tensor) and value.dtype in _ROUNDED
            return value.to(low).float() if is_rounded else value

        with torch.autocast("cpu", enabled=False):
            product = multiply(*map(rounded, args), **{k: rounded(v) for k, v in more.items()})
            return product.to(low) if product.dtype is torch.float32 else product

    return multiply_rounded
