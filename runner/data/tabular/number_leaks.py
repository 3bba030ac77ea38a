"""Finds columns that tell a number to be predicted: alone by their order, or two of them together.

R rows of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, permutations

import numpy as np

LEAK_CORRELATION = 0.9995  # of the ranks of a column and of the label
LEAST_ROWS = 100  # with a value of both
MEETING_SHARE = 0.99  # of the rows in which two columns make the label
MOST_COLUMNS, FORMULA_ROWS = 30, 5_000  # that are tried in pairs
MOST_DECIMALS = 6  # to which a label may be rounded
FORMULAS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., Iterator[tuple[str, ...]]]]] = {
    "+": (np.add, combinations),
    "x": (np.multiply, combinations),
    "-": (np.subtract, permutations),
    "/": (np.divide, permutations),
}


def tells_by_order(x_R: np.ndarray, label_R: np.ndarray) -> bool:
    """Return whether a number rises or falls with the label in nearly all rows, NaN left out."""
    known_R = ~np.isnan(x_R) & ~np.isnan(label_R)
    if known_R.sum() < max(LEAST_ROWS, known_R.size / 2):
        return False
    x_K, label_K = _ranks(x_R[known_R]), _ranks(label_R[known_R])
    if x_K.min() == x_K.max() or label_K.min() == label_K.max():
        return False
    return bool(abs(np.corrcoef(x_K, label_K)[0, 1]) >= LEAK_CORRELATION)


def _ranks(values_K: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value."""
    _, index_K, counts = np.unique(values_K, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index_K]


def find_formula(
    numbers: Mapping[str, np.ndarray], label_R: np.ndarray
) -> tuple[str, tuple[str, str]] | None:
    """Return how two numbers make the label up to its rounding, and their names; None: none do.

    Sums, differences, products and quotients are tried, such as clicks / impressions.
    """
    step = -(-len(label_R) // FORMULA_ROWS)
    label_R, numbers = label_R[::step], {name: x_R[::step] for name, x_R in numbers.items()}
    label_R = np.where(np.isfinite(label_R), label_R, np.nan)
    bound_R = _rounding(label_R)
    values, counts = np.unique(label_R[~np.isnan(label_R)], return_counts=True)
    if len(values):  # what most rows have, such as 0, is met by chance
        label_R = np.where(label_R == values[counts.argmax()], np.nan, label_R)
    varying = [n for n, x_R in numbers.items() if (x_R[:-1] != x_R[1:]).any()][:MOST_COLUMNS]
    for sign, (make, pairs) in FORMULAS.items():
        for one, other in pairs(varying, 2):
            with np.errstate(all="ignore"):  # a quotient by 0 meets nothing
                made_R = make(numbers[one], numbers[other])
            if _meets(made_R, label_R, bound_R):
                return f"{one} {sign} {other}", (one, other)
    return None


def is_share(part_R: np.ndarray, all_R: np.ndarray) -> bool:
    """Return whether whole numbers from 0 on are parts of others, as clicks are of impressions."""
    part_K, all_K = (x_R[~np.isnan(part_R) & ~np.isnan(all_R)] for x_R in (part_R, all_R))
    are_whole = (part_K == part_K.round()).all() and (all_K == all_K.round()).all()
    return bool(are_whole and (part_K >= 0).all() and (part_K <= all_K).all())


def _rounding(label_R: np.ndarray) -> np.ndarray:
    """Return [R] by how much a formula may differ from a label that has so many decimals."""
    known_R = label_R[~np.isnan(label_R)]
    decimals = range(MOST_DECIMALS)
    exact = [d for d in decimals if np.allclose(known_R, known_R.round(d), rtol=0, atol=1e-9)]
    half = 0.501 * 10.0 ** -exact[0] if exact and exact[0] else 0.0  # whole numbers are exact
    return np.asarray(half + 1e-6 * np.abs(label_R))


def _meets(made_R: np.ndarray, label_R: np.ndarray, bound_R: np.ndarray) -> bool:
    known_R = ~np.isnan(made_R) & ~np.isnan(label_R)
    if known_R.sum() < max(LEAST_ROWS, (~np.isnan(label_R)).sum() / 2):
        return False
    meets_K = np.abs(made_R - label_R)[known_R] <= bound_R[known_R]
    return bool(meets_K.mean() >= MEETING_SHARE)
