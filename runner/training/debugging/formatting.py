"""Numbers and tensors in few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def format_short_number(value: float | None) -> str:
    """At most seven characters."""
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


def format_percent(part: float) -> str:
    if part == 0 or part == 1:
        return f"{100 * part:.0f}%"
    return "<0.1%" if part < 0.001 else f"{100 * part:.1f}%"


def format_shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def describe_non_finite(tensor: Tensor) -> str:
    """How many values are not finite: `3 of 4,096 values (0.1%: 2 NaN, 1 infinite)`.

    Synchronises.
    """
    values = tensor.detach()
    num_nan, num_infinite = int(values.isnan().sum()), int(values.isinf().sum())
    kinds = [f"{num_nan:,} NaN"] if num_nan else []
    kinds += [f"{num_infinite:,} infinite"] if num_infinite else []
    bad = num_nan + num_infinite
    part = format_percent(bad / max(values.numel(), 1))
    return f"{bad:,} of {values.numel():,} values ({part}: {', '.join(kinds)})"


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; true of no values. Synchronises."""
    return bool(tensor.detach().isfinite().all())  # sync
