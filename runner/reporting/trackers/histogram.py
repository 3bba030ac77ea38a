"""Histograms for trackers. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """A histogram of finite values.

    counts[i] values are in [edges[i], edges[i + 1]); the last bin includes its upper edge too.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float  # the sum of all values
    sum_squares: float  # the sum of their squares
