"""Checks of the sizes that a configuration gives to layers, since torch accepts a width of 0."""

from __future__ import annotations

from collections.abc import Sequence


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Check that all sizes, and all sizes in lists, are whole numbers from 1.

    Raises:
        ValueError: naming the first size or list that breaks this.
    """
    for name, value in sizes.items():
        for size in value if isinstance(value, Sequence) else [value]:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                shown = list(value) if isinstance(value, Sequence) else value
                raise ValueError(f"{name}={shown}: must be whole numbers from 1")
