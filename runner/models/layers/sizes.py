"""Sizes that a configuration gives, checked where a layer is made: torch accepts a width of 0."""

from __future__ import annotations

from collections.abc import Sequence


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raises: ValueError naming the first size, or list of sizes, that has one below 1."""
    for name, value in sizes.items():
        for size in value if isinstance(value, Sequence) else [value]:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                shown = list(value) if isinstance(value, Sequence) else value
                raise ValueError(f"{name}={shown}: whole numbers from 1")
