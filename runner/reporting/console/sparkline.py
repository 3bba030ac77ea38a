"""Pictures in text: a line of little bars, and bars beside a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
BLANK = "·"  # where there is no number


def sparkline(values: Sequence[float]) -> str:
    """A bar a value, from the least to the greatest of them."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return BLANK * len(values)
    low, high = min(finite), max(finite)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((v - low) * scale)] if math.isfinite(v) else BLANK for v in values)


def bar(value: float, largest: float, width: int = 30) -> str:
    """A bar of a length in proportion to `largest`, in eighths of a character."""
    if not (math.isfinite(value) and largest > 0):
        return ""
    eighths = round(8 * width * max(0.0, value) / largest)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
