"""The rows that proposals are judged on, in two halves, and their labels and numbers.

R rows of the sample, K rows with a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from runner.data.columns.amounts import Amounts, parse_amounts
from runner.data.columns.times import as_seconds, is_seconds
from runner.data.proposal.columns.guess_label import read_binary_labels, read_label
from runner.data.proposal.columns.guess_roles import Role

MOST_ROWS = 40_000  # of the sample; more are not needed to judge a proposal
FEWEST_ROWS = 100  # with a label

Rows = np.ndarray  # their numbers, each below K
Halves = tuple[Rows, Rows]
Proposed = tuple[dict[str, dict[str, Any]], list[str]]  # name -> settings of each feature, notes


class JudgedLabel(NamedTuple):
    """A label that a proposal is judged on, with the rows that have it."""

    known_R: np.ndarray  # which rows these are
    y_K: np.ndarray
    halves: Halves

    def mean_both_ways(self, judge: Callable[[Rows, Rows], float]) -> float:
        """Return the mean of two judgements: of each half, learnt from the other one.

        Args:
            judge: takes the rows to learn from, and those to judge.
        """
        return float(np.mean([judge(*order) for order in (self.halves, self.halves[::-1])]))


@dataclass(frozen=True)
class JudgingSample:
    """Rows of a sample in two halves: effects fitted to one are judged on the other."""

    table: pa.Table  # at most `MOST_ROWS` rows
    # each label, or class of one, [R] as 0 and 1, NaN where it is missing; of a number, 1 is above
    # the median
    labels: Sequence[np.ndarray]
    # which rows are the second half: every other one, or the later ones if rows are split by time,
    # since what holds in a week need not hold in the next
    late_R: np.ndarray
    is_whole: bool = False  # whether these are all rows of the table
    # the time of each row, NaN where it is missing; None: rows are not split by time
    seconds_R: np.ndarray | None = None

    def halves(self, known_R: np.ndarray) -> Halves:
        """Return both halves of the rows chosen by a mask [R], as positions among these."""
        late_K = self.late_R[known_R]
        return np.flatnonzero(~late_K), np.flatnonzero(late_K)

    def judged_labels(self, x_R: np.ndarray | None = None) -> Iterator[JudgedLabel]:
        """Yield each usable label: one with enough rows, that is not constant in either half.

        Args:
            x_R: a number; rows where it is missing are left out. None: no row is.
        """
        for y_R in self.labels:
            known_R = np.isfinite(y_R) if x_R is None else np.isfinite(x_R) & np.isfinite(y_R)
            y_K, halves = y_R[known_R], self.halves(known_R)
            if len(y_K) >= FEWEST_ROWS and all(len(half) and y_K[half].std() for half in halves):
                yield JudgedLabel(known_R, y_K, halves)


def draw_judging_sample(
    sample: pa.Table,
    roles: Mapping[str, Role],
    seconds_R: np.ndarray | None = None,
    *,
    is_whole: bool = False,
) -> JudgingSample:
    """Return rows of a sample, in their order.

    Args:
        seconds_R: the time of each row, NaN where it is missing; None: rows are not split by time.
        is_whole: whether the sample is the table.
    """
    table = sample
    if sample.num_rows > MOST_ROWS:
        rows = np.random.default_rng(0).choice(sample.num_rows, MOST_ROWS, replace=False)
        rows = np.sort(rows)
        table, seconds_R = sample.take(rows), None if seconds_R is None else seconds_R[rows]
        is_whole = False
    late_R = np.arange(table.num_rows) % 2 != 0
    if seconds_R is not None and (later_R := seconds_R > np.nanmedian(seconds_R)).any():
        late_R = later_R  # or most rows have the last time
    labels = _read_labels(table, roles)
    return JudgingSample(table, labels, np.asarray(late_R), is_whole, seconds_R)


def _read_labels(table: pa.Table, roles: Mapping[str, Role]) -> list[np.ndarray]:
    """Return each label, or class of one, as 0 and 1; of a number, 1 is above the median."""
    labels = []
    for name, role in roles.items():
        if role.name != "labels":
            continue
        if is_number(role):
            y_R = read_number_label(table[name], role)
            labels.append(np.where(np.isnan(y_R), np.nan, y_R > np.nanmedian(y_R)))
        else:
            labels += read_binary_labels(table[name], name, dict(role.settings)).values()
    return labels


def is_number(role: Role) -> bool:
    """Tell whether a column is a label that is a number."""
    return role.name == "labels" and role.settings.get("type") == "regression"


def read_number_label(column: pa.ChunkedArray, role: Role) -> np.ndarray:
    """Return [R] float64, a label that is a number; NaN where it is missing."""
    settings = dict(role.settings)
    return read_label(column, settings) if "grades" in settings else read_numbers(column, settings)


def read_numbers(column: pa.ChunkedArray, settings: Mapping[str, Any]) -> np.ndarray:
    """Return [R] float64, the logarithm if the settings ask for it; NaN where it is missing."""
    values = column.combine_chunks()
    if amounts := Amounts.of_settings(settings):
        values = parse_amounts(values.cast(pa.string()), amounts)
    elif is_seconds(values.type):
        values = as_seconds(values)
    x_R = values.cast(pa.float64(), safe=False).fill_null(np.nan)
    found_R = np.asarray(x_R.to_numpy(zero_copy_only=False))
    return np.log1p(np.maximum(found_R, 0.0)) if settings.get("log1p") else found_R


def value_codes(column: pa.ChunkedArray) -> np.ndarray:
    """Return the value of each row as a code from 0 on, [R]."""
    values = column.combine_chunks()
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary))
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def is_single_number(role: Role) -> bool:
    """Tell whether a column holds one number in each row."""
    return role.name == "numeric" and "size" not in role.settings


def is_single_id(role: Role) -> bool:
    """Tell whether a column holds one id in each row."""
    return role.name == "categorical" and not {"list", "separator"} & {*role.settings}
