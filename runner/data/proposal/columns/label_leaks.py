"""Finds columns that give a label away, since they are known only after it.

A numeric label may follow from the order of one column, or from two or more columns together.
R rows of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, permutations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.files.read_files import is_numeric

LEAK_AUC = 0.99
LEAST_BINNED_ROWS = 400  # with fewer rows, bins make strong features look like leaks
LEAK_KNOWN_ROWS, LEAK_SHARE = 100, 0.9  # rows with a value; share of their label in others
MOST_STEPS = 0.9  # share of rows in which a column of 0 and 1 may be 1
MOST_CHANCE = 1e-9  # probability that all rows of label 1 are on by chance
CHOICE_SHARE = 0.95  # of the rows in groups, and of the groups with one row of label 1
STEP_DIFFERENCE = 0.8  # between the shares of rows with a value among labels 1 and 0
LEAK_CORRELATION = 0.9995  # of the ranks of a number and of the label, in nearly all rows
LEAST_ROWS = 100  # with a value of both
MEETING_SHARE = 0.99  # share of the rows in which a formula gives the label
MOST_COLUMNS, FORMULA_ROWS = 30, 5_000  # that are tried in pairs
SIGN_ERROR = 0.001  # of the fitted factors 1 and -1 of a sum
MOST_DECIMALS = 6  # to which a label may be rounded
FORMULAS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., Iterator[tuple[str, ...]]]]] = {
    "{} + {}": (np.add, combinations),
    "{} x {}": (np.multiply, combinations),
    "{} - {}": (np.subtract, permutations),
    "{} / {}": (np.divide, permutations),
    "100 x {} / {}": (lambda part_R, all_R: 100 * np.divide(part_R, all_R), permutations),
}


def leak_auc(column: pa.ChunkedArray, label_R: np.ndarray) -> float:
    """Return the AUC of a column on every other row, with each value scored by its label rate.

    The rates are computed from the remaining rows, so that a column whose values are all distinct
    scores 0.5, which is also returned if the AUC cannot be computed.
    """
    values = column.combine_chunks()
    if pt.is_nested(values.type):
        return 0.5
    ways = [values]
    if is_numeric(values.type):
        ways = _values_and_bins(values.cast(pa.float64(), safe=False))
    return max(_rates_auc(way, label_R) for way in ways)


def _rates_auc(values: pa.Array, label_R: np.ndarray) -> float:
    encoded = values if pt.is_dictionary(values.type) else values.dictionary_encode()
    codes_R = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    known_R = ~np.isnan(label_R)
    codes_R, y_R = codes_R[known_R], label_R[known_R]
    size, prior = int(codes_R.max(initial=0)) + 1, float(y_R.mean()) if len(y_R) else 0.0
    if not 0 < prior < 1 or len(y_R) < 100:
        return 0.5
    counts = np.bincount(codes_R[::2], minlength=size)
    positives = np.bincount(codes_R[::2], weights=y_R[::2], minlength=size)
    rates_R = ((positives + prior) / (counts + 1))[codes_R[1::2]]
    return rank_auc(rates_R, y_R[1::2])


def find_only_label(column: pa.ChunkedArray, label_R: np.ndarray) -> float | None:
    """Return the one label of all rows in which a column has a value, such as the date of a refund.

    None if those rows have several labels, or nearly all other rows have the same label.
    """
    values = column.combine_chunks()
    return _only_label(~values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), label_R)


def _only_label(has_value_R: np.ndarray, label_R: np.ndarray) -> float | None:
    y_R, others_R = label_R[has_value_R], label_R[~has_value_R]
    y_R, others_R = y_R[~np.isnan(y_R)], others_R[~np.isnan(others_R)]
    if len(y_R) < LEAK_KNOWN_ROWS or not len(others_R) or (y_R != y_R[0]).any():
        return None
    return float(y_R[0]) if (others_R == y_R[0]).mean() < LEAK_SHARE else None


def is_zero_without_label(column: pa.ChunkedArray, label_R: np.ndarray) -> bool:
    """Tell whether a number is 0 (or -1) in most rows, and differs from it only in rows of label 1.

    An example is the value of an order, which is 0 where nothing was bought.
    """
    on_R = _rarely_on(column)
    return on_R is not None and _only_label(on_R, label_R) == 1


def holds_all_positives(column: pa.ChunkedArray, label_R: np.ndarray) -> bool:
    """Tell whether a label is 1 only where a number is not 0, and the number is 0 in most rows.

    Such a column is a step on the way to the label, as a visit is before a conversion. A column of
    0 and 1 may be 1 in up to `MOST_STEPS` of the rows, such as whether a rated book was read.
    """
    on_R, positive_R = _rarely_on(column), label_R == 1
    if on_R is None:
        often_R = _rarely_on(column, MOST_STEPS)
        on_R = often_R if often_R is not None and pc.count_distinct(column).as_py() == 2 else None
    if on_R is None or on_R.mean() ** positive_R.sum() > MOST_CHANCE:
        return False
    return bool(on_R[positive_R].all())


def has_one_positive_each(column: pa.ChunkedArray, label_R: np.ndarray) -> bool:
    """Tell whether nearly every value has one row of label 1 among several, as a choice has."""
    indices = column.combine_chunks().dictionary_encode().indices
    known_R = indices.is_valid().to_numpy(zero_copy_only=False) & ~np.isnan(label_R)
    codes_R = indices.fill_null(0).to_numpy(zero_copy_only=False)[known_R]
    rows_V, ones_V = np.bincount(codes_R), np.bincount(codes_R, label_R[known_R])
    several_V = rows_V > 1
    is_most = rows_V[several_V].sum() > CHOICE_SHARE * known_R.sum()
    is_one = several_V.sum() >= LEAST_ROWS and np.mean(ones_V[several_V] == 1) > CHOICE_SHARE
    return bool(is_most and is_one)


def goes_with_label(column: pa.ChunkedArray, label_R: np.ndarray) -> tuple[float, float] | None:
    """Return the shares of the rows of label 1, and of label 0, that have a value.

    If a number is 0 in most rows, such as the seconds on a page without a click, 0 counts as no
    value. None unless the shares differ much.
    """
    on_R = _rarely_on(column)
    if on_R is None:
        values = column.combine_chunks()
        on_R = ~values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    of_1, of_0 = on_R[label_R == 1], on_R[label_R == 0]
    if min(len(of_1), len(of_0)) < LEAK_KNOWN_ROWS or of_1.mean() - of_0.mean() < STEP_DIFFERENCE:
        return None
    return float(of_1.mean()), float(of_0.mean())


def _rarely_on(column: pa.ChunkedArray, most: float = 0.5) -> np.ndarray | None:
    """Return where a number or a boolean is not 0, [R]; None unless its share is below `most`.

    Where the lowest number is -1 and most rows have it, -1 takes the place of 0.
    """
    values = column.combine_chunks()
    if not (is_numeric(values.type) or pt.is_boolean(values.type)):
        return None
    x_R = np.nan_to_num(values.cast(pa.float64(), safe=False).fill_null(0).to_numpy(False))
    for nothing in (0, -1) if x_R.min(initial=0) == -1 else (0,):
        on_R: np.ndarray = x_R != nothing
        if on_R.mean() < most:
            return on_R
    return None


def _values_and_bins(values: pa.Array) -> list[pa.Array]:
    """Return the values if few are distinct, their bins if many are, and both in between."""
    num_distinct = pc.count_distinct(values).as_py()
    num_bins = min(200, len(values) // 10)
    if num_distinct <= num_bins or len(values) < LEAST_BINNED_ROWS:
        return [values]
    x_R = values.fill_null(np.nan).to_numpy(zero_copy_only=False)
    x_R = np.where(np.isfinite(x_R), x_R, np.nan)
    edges = np.unique(np.nanquantile(x_R, np.linspace(0, 1, num_bins + 1)[1:-1]))
    bins = pa.array(np.where(np.isnan(x_R), -1, np.searchsorted(edges, x_R)))
    return [values, bins] if num_distinct <= 2000 else [bins]


def rank_auc(scores_R: np.ndarray, y_R: np.ndarray) -> float:
    """Return the AUC of scores; equal ones count one half, and 0.5 if there is one label only."""
    _, groups_R = np.unique(scores_R, return_inverse=True)
    ones_G, all_G = np.bincount(groups_R, weights=y_R), np.bincount(groups_R)
    zeros_G = all_G - ones_G
    below_G = np.cumsum(zeros_G) - zeros_G
    pairs = ones_G.sum() * zeros_G.sum()
    return float((ones_G * (below_G + zeros_G / 2)).sum() / pairs) if pairs else 0.5


def chance_error(y_R: np.ndarray) -> float:
    """Return the standard error of the AUC of random scores (Mann and Whitney, 1947).

    Args:
        y_R: [R] labels, 0 or 1, of both kinds.
    """
    num_positive = float(y_R.sum())
    return float(((len(y_R) + 1) / (12 * num_positive * (len(y_R) - num_positive))) ** 0.5)


def correlate_ranks(x_R: np.ndarray, label_R: np.ndarray) -> float:
    """Return Spearman's correlation of the rows without NaN; 0 for too few rows or a constant."""
    known_R = ~np.isnan(x_R) & ~np.isnan(label_R)
    if known_R.sum() < max(LEAST_ROWS, known_R.size / 2):
        return 0.0
    x_K, label_K = _ranks(x_R[known_R]), _ranks(label_R[known_R])
    if x_K.min() == x_K.max() or label_K.min() == label_K.max():
        return 0.0
    return float(np.corrcoef(x_K, label_K)[0, 1])


def _ranks(values_K: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value."""
    _, index_K, counts = np.unique(values_K, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index_K]


def find_formula(
    numbers: Mapping[str, np.ndarray], label_R: np.ndarray
) -> tuple[str, tuple[str, ...]] | None:
    """Return a formula of columns that gives the label up to rounding, and their names, or None.

    Sums, differences, products and quotients of two are tried, such as clicks / impressions, and
    sums and differences of more, such as a total without the fare and the tolls.
    """
    step = -(-len(label_R) // FORMULA_ROWS)
    label_R, numbers = label_R[::step], {name: x_R[::step] for name, x_R in numbers.items()}
    all_R = label_R = np.where(np.isfinite(label_R), label_R, np.nan)
    bound_R = _rounding(label_R)
    values, counts = np.unique(label_R[~np.isnan(label_R)], return_counts=True)
    if len(values):  # the most frequent label, such as 0, is matched by chance
        label_R = np.where(label_R == values[counts.argmax()], np.nan, label_R)
    varying = [n for n, x_R in numbers.items() if (x_R[:-1] != x_R[1:]).any()][:MOST_COLUMNS]
    for formula, (make, pairs) in FORMULAS.items():
        for one, other in pairs(varying, 2):
            with np.errstate(all="ignore"):  # a quotient by 0 matches no label
                made_R = make(numbers[one], numbers[other])
            if _meets(made_R, label_R, bound_R):
                return formula.format(one, other), (one, other)
    return _find_sum({name: numbers[name] for name in varying}, all_R, label_R, bound_R)


def _find_sum(
    numbers: Mapping[str, np.ndarray], all_R: np.ndarray, label_R: np.ndarray, bound_R: np.ndarray
) -> tuple[str, tuple[str, ...]] | None:
    """Return the numbers, each with a sign, whose sum is the label up to a constant, or None.

    They are fitted to the labels `all_R`, and must give those of `label_R` that are not NaN.
    """
    x_RC = np.column_stack([np.ones(len(all_R)), *numbers.values()])
    known_R = np.isfinite(x_RC).all(1) & ~np.isnan(all_R)
    if known_R.sum() < 2 * x_RC.shape[1]:
        return None
    found_C = np.linalg.lstsq(x_RC[known_R], all_R[known_R])[0]
    signs_C = found_C.round()
    largest = np.abs(signs_C[1:]).max(initial=0)
    if largest != 1 or np.abs(found_C - signs_C)[1:].max() > SIGN_ERROR:
        return None
    x_RC[:, 0], signs_C[0] = found_C[0], 1
    if not _meets(x_RC @ signs_C, label_R, bound_R):
        return None
    parts = sorted(zip(-signs_C[1:], numbers, strict=True), key=lambda part: part[0])  # + first
    text = "".join(f" {'+' if sign < 0 else '-'} {name}" for sign, name in parts if sign)
    constant = f" {'+' if found_C[0] > 0 else '-'} {abs(found_C[0]):.6g}"
    text += constant if abs(found_C[0]) > np.nanmax(bound_R) else ""
    return text.strip().removeprefix("+ "), tuple(name for sign, name in parts if sign)


def is_share(part_R: np.ndarray, all_R: np.ndarray) -> bool:
    """Return whether whole numbers from 0 on are parts of others, as clicks are of impressions."""
    part_K, all_K = (x_R[~np.isnan(part_R) & ~np.isnan(all_R)] for x_R in (part_R, all_R))
    are_whole = (part_K == part_K.round()).all() and (all_K == all_K.round()).all()
    return bool(are_whole and (part_K >= 0).all() and (part_K <= all_K).all())


def _rounding(label_R: np.ndarray) -> np.ndarray:
    """Return [R] by how much a formula may differ from a label that has so many decimals."""
    known_R = label_R[~np.isnan(label_R)]
    decimals = range(MOST_DECIMALS)
    # 97.6 of 32 bits may be written as 97.599998
    exact = [d for d in decimals if np.allclose(known_R, known_R.round(d), rtol=1e-7, atol=1e-9)]
    half = 0.501 * 10.0 ** -exact[0] if exact and exact[0] else 0.0  # whole numbers are exact
    return np.asarray(half + 1e-6 * np.abs(label_R))


def _meets(made_R: np.ndarray, label_R: np.ndarray, bound_R: np.ndarray) -> bool:
    known_R = ~np.isnan(made_R) & ~np.isnan(label_R)
    if known_R.sum() < max(LEAST_ROWS, (~np.isnan(label_R)).sum() / 2):
        return False
    meets_K = np.abs(made_R - label_R)[known_R] <= bound_R[known_R]
    return bool(meets_K.mean() >= MEETING_SHARE)
