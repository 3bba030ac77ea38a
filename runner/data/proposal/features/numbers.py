"""Finds the quantities among whole numbers that may be ids, by how their order predicts the label.

R rows of the sample, K rows with a label and a number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.amounts import are_plain_numbers
from runner.data.proposal.columns.column_names import USER, guess_kind, sounds_like_time
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_roles import (
    DOUBT_REASON,
    ORDER_REASON,
    UNIQUE_REASON,
    Role,
    propose_numeric,
)
from runner.data.proposal.columns.judging_sample import JudgingSample, Proposed, Rows, read_numbers
from runner.data.proposal.columns.label_leaks import chance_error, rank_auc
from runner.data.proposal.columns.sample_statistics import compute_amount_statistics
from runner.data.proposal.features.number_ids import CHANCE_GAIN, LEAST_GAIN, means_of_buckets

EVEN_DISTANCE = 0.15  # largest distance from evenly spaced numbers, as a share of their range
LARGEST_QUANTITY = 1e10  # larger numbers are hashes, or times
FEW_BEYOND = 0.1  # share of the numbers of a half that may overlap with those of the other
# The AUC above 0.5 of the order of quantities, as a share of that of values and order together. In
# 100 tables, where the order was better than chance, it was 0.8 and more for most quantities, and
# below 0.6 for ids such as schools, counties and firms.
ORDER_SHARE = 0.8
ORDER_ERRORS = 5.0  # standard errors of the AUC by which the order must exceed chance
PRIOR_ROWS = 10.0  # weight of its bucket's mean in the mean of a value, in rows
MANY_ROWS_OF_VALUE = 50  # on average; embeddings of values then learn what a number would hide
# So many columns in order, and half of all in doubt, are measurements, such as skills of players or
# colours of pixels: embeddings of the values of all of them overfit.
MANY_ORDERED = 10


class _Aucs(NamedTuple):
    """How well a number predicts the label in several ways, as AUC on rows not learnt from."""

    order: float  # by the number itself
    bucket: float  # by the mean label of its bucket, one of ten
    values: float  # by the mean label of its value
    both: float  # by the mean label of its value, shrunk to the bucket's if the value is rare

    @property
    def number(self) -> float:
        """The better of the AUCs of the number itself and its bucket."""
        return max(self.order, self.bucket)


def settle_doubts(
    sample: JudgingSample, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> dict[str, Role]:
    """Return the columns in doubt that are quantities, each with its new role.

    They were taken for ids since neither the name nor the values suggested a quantity. If the order
    predicts nearly as well as the values do, embeddings of rare values only memorise rows. A sample
    of a large table cannot show that, since more rows would say more about each value.
    """
    if not sample.is_whole:
        return {}
    in_doubt = [f for f in columns if roles[f.name].reason == DOUBT_REASON]
    ordered = [
        f
        for f in in_doubt
        if not _drifts(x_R := read_numbers(sample.table[f.name], {}), sample)
        and _follows_order(x_R, sample)
    ]
    are_measured = len(ordered) >= max(MANY_ORDERED, len(in_doubt) / 2)
    return {
        f.name: Role("numeric", ORDER_REASON, propose_numeric(f))
        for f in ordered
        if are_measured or f.num_rows < MANY_ROWS_OF_VALUE * f.num_distinct
    }


def propose_numbers_of_ids(
    sample: JudgingSample,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    used_names: Collection[str],
) -> Proposed:
    """Propose a number of each column of whole numbers whose order predicts more than its values.

    Whole numbers are taken for ids where nothing suggests a quantity. If a quantity has many
    values, such as the kilometres of a car, each is too rare to learn an embedding.
    """
    table = sample.table
    proposed: dict[str, dict[str, Any]] = {}
    for f in columns:
        name, type_ = f"{f.name}_number", table[f.name].type
        is_unique = roles[f.name] == Role("carried", UNIQUE_REASON)
        if name in used_names or not (roles[f.name].name == "categorical" or is_unique):
            continue
        has_point = pt.is_floating(type_) or pt.is_decimal(type_)
        is_whole = pt.is_integer(type_) or (has_point and f.is_whole)
        is_string = pt.is_string(type_) or pt.is_large_string(type_)
        if is_string and not (f.separator or f.time_form or f.amounts):
            texts = table[f.name].combine_chunks().drop_null().cast(pa.string())
            if is_whole := are_plain_numbers(texts):  # as BigQuery writes integers
                f = compute_amount_statistics(table[f.name], f.name, is_number=True) or f
        if not is_whole:
            continue
        x_R = read_numbers(table[f.name], f.amounts.settings() if f.amounts else {})
        if (is_unique and _may_number_rows(f, x_R)) or _drifts(x_R, sample):
            continue
        in_doubt = roles[f.name].reason == DOUBT_REASON
        if _gains_by_order(x_R, sample) or (in_doubt and _follows_order(x_R, sample)):
            proposed[name] = {"column": f.name, **propose_numeric(f)}
    if not proposed:
        return {}, []
    ids = ", ".join(settings["column"] for settings in proposed.values())
    what = "numbers" if len(proposed) > 1 else "a number"
    return proposed, [
        f"the order of the values of {ids} helps to predict the label: also proposed as {what}, "
        f"{', '.join(proposed)}"
    ]


def _drifts(x_R: np.ndarray, sample: JudgingSample) -> bool:
    """Tell whether nearly all numbers of one half of the rows are above those of the other.

    If the halves are by time, such numbers rise or fall with it, and later rows have new values.
    """
    known_R = np.isfinite(x_R)
    early, late = x_R[known_R & ~sample.late_R], x_R[known_R & sample.late_R]
    if not (len(early) and len(late)):
        return True
    low, high = sorted((early, late), key=np.median)
    return bool(np.quantile(low, 1 - FEW_BEYOND) <= np.quantile(high, FEW_BEYOND))


def _may_number_rows(f: ColumnStatistics, x_R: np.ndarray) -> bool:
    """Tell whether numbers that are distinct in nearly every row may be ids, times or row numbers.

    Those are evenly spaced or sorted, which quantities hardly ever are.
    """
    x_K = np.sort(x_R[~np.isnan(x_R)])
    shares_K = (x_K - x_K[0]) / max(x_K[-1] - x_K[0], 1.0)
    is_even = np.abs(shares_K - np.linspace(0, 1, len(x_K))).max() < EVEN_DISTANCE
    steps = np.diff(x_R[~np.isnan(x_R)])
    is_sorted = (steps >= 0).all() or (steps <= 0).all()
    is_time = bool(f.time_form) or sounds_like_time(f.name) or x_K[-1] > LARGEST_QUANTITY
    is_named_id = guess_kind(f.name) == "id" or USER.fullmatch(f.name) is not None
    return bool(is_even or is_sorted or is_time or is_named_id)


def _gains_by_order(x_R: np.ndarray, sample: JudgingSample) -> bool:
    """Tell whether numbers predict a label better than their single values, by more than chance."""
    for label in sample.judged_labels(x_R):
        y_K = label.y_K
        gain = label.mean_both_ways(partial(_gain_of_order, x_R[label.known_R], y_K))
        num_rows = 4 * len(y_K) * y_K.var()  # of a balanced label with as much information
        if gain >= max(LEAST_GAIN, CHANCE_GAIN / num_rows**0.5):
            return True
    return False


def _gain_of_order(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows, held_out: Rows) -> float:
    """Return by how much the AUC of numbers, or of their buckets, exceeds that of single values.

    For random numbers one of them is larger by chance, so the result is at most half of the
    excess over 0.5.
    """
    aucs = _judge(x_K, y_K, fitted, held_out)
    return min(aucs.number - aucs.values, (aucs.number - 0.5) / 2)


def _follows_order(x_R: np.ndarray, sample: JudgingSample) -> bool:
    """Tell whether the order of numbers predicts a label, and their values add little to it."""
    is_ordered, by_number, by_both = False, 0.0, 0.0
    for known_R, y_K, halves in sample.judged_labels(x_R):
        ways = [_judge(x_R[known_R], y_K, *order) for order in (halves, halves[::-1])]
        aucs = _Aucs(*np.mean(ways, axis=0))
        is_ordered |= aucs.order - 0.5 >= max(LEAST_GAIN, ORDER_ERRORS * chance_error(y_K))
        by_number, by_both = by_number + aucs.number - 0.5, by_both + aucs.both - 0.5
    return is_ordered and by_number >= ORDER_SHARE * by_both


def _judge(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows, held_out: Rows) -> _Aucs:
    """Return how well numbers predict the label in one half of the rows, learnt from the other."""
    values, code_K = np.unique(x_K, return_inverse=True)
    counts_K = np.bincount(code_K[fitted], minlength=len(values))[code_K]
    sums_K = np.bincount(code_K[fitted], weights=y_K[fitted], minlength=len(values))[code_K]
    bucket_K = means_of_buckets(x_K, y_K, fitted)
    falls = rank_auc(x_K[fitted], y_K[fitted]) < 0.5
    scores = (
        -x_K if falls else x_K,
        bucket_K,
        (sums_K + y_K.mean()) / (counts_K + 1),
        (sums_K + PRIOR_ROWS * bucket_K) / (counts_K + PRIOR_ROWS),
    )
    return _Aucs(*(rank_auc(score_K[held_out], y_K[held_out]) for score_K in scores))
