"""Proposes ids made of numbers: their buckets, and whether a number is missing.

R rows of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_label import holds_grades
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    JudgingSample,
    Proposed,
    Rows,
    is_number,
    is_single_number,
    read_number_label,
    read_numbers,
)
from runner.data.proposal.columns.label_leaks import rank_auc

BUCKETS = 30  # proposed for a number
JUDGED_BUCKETS = 10  # for the comparison with the order; few, so that each has many rows
# What buckets must gain over the order of a number, in AUC on the half of the rows that they were
# not fitted to. With few rows, chance alone gains that much for one number in a hundred.
LEAST_GAIN, CHANCE_GAIN = 0.01, 1.5  # the latter divided by the root of the rows
# What buckets must gain over a line if the label is a grade: the share of its variance that they
# explain on those rows. Features of grades are mostly counts and scores with thresholds. Prices and
# other smooth labels are predicted worse with such buckets.
LEAST_SHARE, CHANCE_SHARE = 0.001, 10.0  # the latter divided by the rows
FEWEST_VALUES = 10  # and as many missing ones
DEVIATIONS = 4.0  # standard errors of the difference in mean label

# Takes numbers and labels [K], the half of the rows to learn from, and the other half.
Gain = Callable[[np.ndarray, np.ndarray, Rows, Rows], float]
Labels = Sequence[np.ndarray]  # each [R], 0 or 1, NaN where it is missing


def propose_number_ids(
    sample: JudgingSample, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> Proposed:
    """Propose ids made of numbers, where buckets or a missing value help to predict the label.

    Buckets are for tables without ids: for each number of which the label is not a monotonic
    function or, if it is a grade, not a linear one. At least one number gets them, since most
    models need ids, and only one if a label has classes: see `has_classes`.
    """
    names = {f.name for f in columns}
    has_ids = any(role.name == "categorical" for role in roles.values())
    numeric = {n: role.settings for n, role in roles.items() if role.name == "numeric"}
    single = [n for n, role in roles.items() if is_single_number(role)]
    x_by_name = {n: read_numbers(sample.table[n], numeric[n]) for n in single}
    graded = [f.name for f in columns if is_number(roles[f.name]) and holds_grades(f)]
    grades = [read_number_label(sample.table[name], roles[name]) for name in graded]
    lowest = {f.name: f.low for f in columns}
    proposed: dict[str, dict[str, Any]] = {}
    # vectors come last: a bucket does not show the position in the vector
    bucketed = []
    if not has_ids:
        bucketed = _choose_bucketed(x_by_name, sample, grades, only_one=has_classes(roles))
        bucketed = bucketed or list(numeric)
    for name in bucketed:
        if f"{name}_bucket" not in names:
            more = {"encode": "bucketise", "buckets": BUCKETS}
            proposed[f"{name}_bucket"] = column_settings(name, numeric[name]) | more
    remaining = [n for n in single if n not in bucketed and f"{n}_missing" not in names]
    telling = [n for n in remaining if _missing_tells(x_by_name[n], sample.labels)]
    for name in telling:
        more = {"encode": "bucketise", "boundaries": [lowest[name]]}  # one bucket for all values
        proposed[f"{name}_missing"] = column_settings(name, numeric[name]) | more
    if not telling:
        return proposed, []
    listed, added = ", ".join(telling), ", ".join(f"{name}_missing" for name in telling)
    note = f"whether {listed} is missing helps to predict the label: proposed as {added}"
    return proposed, [note]


def has_classes(roles: Mapping[str, Role]) -> bool:
    """Tell whether a label has classes, so that buckets of numbers do harm.

    Each bucket has weights for each class, which are too many for the rows: without buckets, the
    log loss on five tables was 0.78 to 1.01 of that with them (diamonds, image segments, choices
    of ketchup and of votes, staff).
    """
    return any("classes" in role.settings for role in roles.values())


def column_settings(name: str, numeric: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which an id reads the column of a number with settings `numeric`."""
    written = {
        key: numeric[key] for key in ("separator", "input", "unit", "missing") if key in numeric
    }
    return {"column": name, **({"list": True} if "size" in numeric else {}), **written}


def _choose_bucketed(
    x_by_name: Mapping[str, np.ndarray], sample: JudgingSample, grades: Labels, *, only_one: bool
) -> list[str]:
    """Return the numbers whose buckets predict better than their order; at least the best one."""
    gains = {n: _best_gain(x_R, sample, _gain_of_buckets) for n, x_R in x_by_name.items()}
    num_rows = sample.table.num_rows
    least = max(LEAST_GAIN, CHANCE_GAIN / max(num_rows, 1) ** 0.5)
    first = sorted(gains, key=lambda name: -gains[name])[:1]
    if only_one:
        return first
    share = max(LEAST_SHARE, CHANCE_SHARE / max(num_rows, 1))
    graded = replace(sample, labels=grades)
    curved = {
        n for n, x_R in x_by_name.items() if _best_gain(x_R, graded, _gain_over_line) >= share
    }
    return [name for name, gain in gains.items() if gain >= least or name in curved] or first


def _best_gain(x_R: np.ndarray, sample: JudgingSample, gain: Gain) -> float:
    """Return the largest gain of a number among the labels, each the mean over both halves."""
    labels = sample.judged_labels(x_R)
    gains = [label.mean_both_ways(partial(gain, x_R[label.known_R], label.y_K)) for label in labels]
    return max([0.0, *gains])


def _gain_of_buckets(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows, held_out: Rows) -> float:
    """Return by how much the AUC of a number's buckets exceeds that of its order."""
    by_order = rank_auc(x_K[held_out], y_K[held_out])
    by_bucket = rank_auc(means_of_buckets(x_K, y_K, fitted)[held_out], y_K[held_out])
    return by_bucket - max(by_order, 1 - by_order)


def _gain_over_line(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows, held_out: Rows) -> float:
    """Return how much more of a label's variance buckets explain than a line."""
    if not (x_K[fitted].std() and x_K[held_out].std()):
        return 0.0
    buckets_K = means_of_buckets(x_K, y_K, fitted)
    x_F, y_F = x_K[fitted] - x_K[fitted].mean(), y_K[fitted]
    line_K = y_F.mean() + (x_F @ y_F / (x_F @ x_F)) * (x_K - x_K[fitted].mean())
    of_line, of_buckets = (
        np.square(y_K - found_K)[held_out].mean() for found_K in (line_K, buckets_K)
    )
    return float((of_line - of_buckets) / y_K[held_out].var())


def means_of_buckets(x_K: np.ndarray, y_K: np.ndarray, fitted: Rows) -> np.ndarray:
    """Return for each row the mean label of its bucket in the fitted half of the rows."""
    code_K = bucket_codes(x_K, JUDGED_BUCKETS)
    size = int(code_K.max()) + 1
    counts = np.bincount(code_K[fitted], minlength=size)
    sums = np.bincount(code_K[fitted], weights=y_K[fitted], minlength=size)
    return np.asarray(((sums + y_K.mean()) / (counts + 1))[code_K])


def bucket_codes(x_K: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return the bucket of each row's number [K], of about as many rows each.

    Missing numbers have a bucket of their own.
    """
    finite_K = np.isfinite(x_K)
    inner = np.zeros(0)
    if finite_K.any():
        inner = np.unique(np.quantile(x_K[finite_K], np.linspace(0, 1, num_buckets + 1)[1:-1]))
    return np.where(finite_K, np.searchsorted(inner, x_K, "right"), len(inner) + 1)


def _missing_tells(x_R: np.ndarray, labels: Labels) -> bool:
    """Tell whether the mean label differs between rows with and without a number."""
    for y_R in labels:
        missing_K, y_K = np.isnan(x_R)[~np.isnan(y_R)], y_R[~np.isnan(y_R)]
        counts = np.array([missing_K.sum(), (~missing_K).sum()])
        if counts.min() < FEWEST_VALUES:
            continue
        difference = y_K[missing_K].mean() - y_K[~missing_K].mean()
        error = np.sqrt(y_K.var() * (1 / counts).sum())
        if abs(difference) > DEVIATIONS * error:
            return True
    return False
