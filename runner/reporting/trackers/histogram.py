"""How many values lie where: what trackers show beside numbers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """counts[i] values lie from edges[i] up to, not including, edges[i + 1]; the last bin has
    both of its edges. What is not finite is left out."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float  # of all values
    sum_squares: float  # the sum of their squares
