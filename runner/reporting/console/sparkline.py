"""Bars in text: a line of vertical bars, and horizontal bars for the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
BLANK = "·"  # for a value that is not finite


def sparkline(values: Sequence[float]) -> str:
    """Return one bar per value, scaled from the least to the greatest value."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return BLANK * len(values)
    low, high = min(finite), max(finite)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((v - low) * scale)] if math.isfinite(v) else BLANK for v in values)


def bar(value: float, largest: float) -> str:
    """Return a bar of value / largest x 30 characters, in eighths of one."""
    if not (math.isfinite(value) and largest > 0):
        return ""
    eighths = round(8 * 30 * max(0.0, value) / largest)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
