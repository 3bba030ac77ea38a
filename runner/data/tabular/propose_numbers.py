"""Proposes numbers beside ids: of whole numbers whose order tells the label more than each value.

R rows of the sample, K rows with a label and a number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.tabular.column_names import USER, guess_kind, sounds_like_time
from runner.data.tabular.column_statistics import ColumnStatistics
from runner.data.tabular.guess_label import rank_auc
from runner.data.tabular.guess_roles import UNIQUE_REASON, Role, propose_numeric
from runner.data.tabular.judging_sample import JudgingSample, Rows
from runner.data.tabular.propose_number_ids import (
    CHANCE_GAIN,
    LEAST_GAIN,
    best_gain,
    means_of_buckets,
)

EVEN_DISTANCE = 0.15  # between the shares of numbers and those of even ones, below which they are
LARGEST_QUANTITY = 1e10  # larger numbers are hashes, or times


def propose_numbers_of_ids(
    sample: JudgingSample,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    taken: Collection[str],
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Propose a number of each column of whole numbers whose order tells more than its values do.

    Whole numbers are ids where nothing speaks for a quantity. Of a quantity with many values each
    is seen too rarely for a vector of its own, or in a single row, as the kilometres of a car are.

    Args:
        sample: rows of the table.
        columns: their statistics.
        roles: of the columns.
        taken: names that no number may have.

    Returns:
        Name -> settings of each number, and a note if there is one.
    """
    table = sample.table
    least = max(LEAST_GAIN, CHANCE_GAIN / max(table.num_rows, 1) ** 0.5)
    found: dict[str, dict[str, Any]] = {}
    for f in columns:
        name, type_ = f"{f.name}_number", table[f.name].type
        is_whole = pt.is_integer(type_) or (pt.is_floating(type_) and f.is_whole)
        is_unique = roles[f.name] == Role("carried", UNIQUE_REASON)
        may_be = roles[f.name].name == "categorical" or is_unique
        if not (may_be and is_whole) or name in taken:
            continue
        x_R = table[f.name].combine_chunks().cast(pa.float64(), safe=False).fill_null(np.nan)
        x_R = np.asarray(x_R.to_numpy(zero_copy_only=False))
        if is_unique and _may_number_rows(f, x_R):
            continue
        if best_gain(x_R, sample, _gain_of_order) >= least:
            found[name] = {"column": f.name, **propose_numeric(f)}
    if not found:
        return {}, []
    ids, made = ", ".join(given["column"] for given in found.values()), ", ".join(found)
    are = "are numbers" if len(found) > 1 else "is a number"
    return found, [f"values of {ids} tell more by their order than one by one: {made} {are}"]


def _may_number_rows(f: ColumnStatistics, x_R: np.ndarray) -> bool:
    """Tell whether numbers that differ in nearly every row may be ids, times or rows' numbers.

    These lie evenly between the lowest and the highest, or come in order; quantities hardly do.
    """
    x_K = np.sort(x_R[~np.isnan(x_R)])
    shares_K = (x_K - x_K[0]) / max(x_K[-1] - x_K[0], 1.0)
    is_even = np.abs(shares_K - np.linspace(0, 1, len(x_K))).max() < EVEN_DISTANCE
    steps = np.diff(x_R[~np.isnan(x_R)])
    is_sorted = (steps >= 0).all() or (steps <= 0).all()
    is_time = bool(f.time_form) or sounds_like_time(f.name) or x_K[-1] > LARGEST_QUANTITY
    named = guess_kind(f.name) == "id" or USER.fullmatch(f.name) is not None
    return bool(is_even or is_sorted or is_time or named)


def _gain_of_order(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows, judged: Rows) -> float:
    """Return how much more AUC numbers, or their buckets, have than single values.

    Of numbers that tell nothing one or the other has more by chance, so that it is at most half of
    what they have more than chance.
    """
    values, code_K = np.unique(x_K, return_inverse=True)
    counts = np.bincount(code_K[fitted], minlength=len(values))
    sums = np.bincount(code_K[fitted], weights=y_K[fitted], minlength=len(values))
    rates_K = ((sums + y_K.mean()) / (counts + 1))[code_K]
    by_order = rank_auc(x_K[judged], y_K[judged])
    if rank_auc(x_K[fitted], y_K[fitted]) < 0.5:
        by_order = 1 - by_order
    by_bucket = rank_auc(means_of_buckets(x_K, y_K, fitted)[judged], y_K[judged])
    as_number = max(by_order, by_bucket)
    return min(as_number - rank_auc(rates_K[judged], y_K[judged]), (as_number - 0.5) / 2)
