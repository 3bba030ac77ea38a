"""Describes numbers and tensors in few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def format_short_number(value: float | None) -> str:
    """Format a number in at most seven characters; None as a dash."""
    if value is None:
        return "-"
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if 0.01 <= abs(value) < 999.5:
        return f"{value:.3g}"
    if 999.5 <= abs(value) < 100_000:
        return f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def format_percent(fraction: float) -> str:
    """Format a fraction as percent; only 0 and 1 themselves are shown as 0% and 100%."""
    if fraction == 0 or fraction == 1:
        return f"{100 * fraction:.0f}%"
    return "<0.1%" if fraction < 0.001 else f"{100 * fraction:.1f}%"


def format_shape(sizes: Sequence[int]) -> str:
    """Format a shape such as `32x8`."""
    return "x".join(map(str, sizes)) or "scalar"


def describe_non_finite(tensor: Tensor) -> str:
    """Say how many values are not finite: `3 of 4,096 values (0.1%: 2 NaN, 1 infinite)`.

    Synchronises.
    """
    values = tensor.detach()
    num_nan, num_infinite = int(values.isnan().sum()), int(values.isinf().sum())
    kinds = [f"{num_nan:,} NaN"] if num_nan else []
    kinds += [f"{num_infinite:,} infinite"] if num_infinite else []
    bad = num_nan + num_infinite
    percent = format_percent(bad / max(values.numel(), 1))
    return f"{bad:,} of {values.numel():,} values ({percent}: {', '.join(kinds)})"


def is_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinite. Synchronises."""
    return bool(tensor.detach().isfinite().all())  # sync
