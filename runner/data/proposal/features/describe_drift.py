"""Notes that old rows mislead, where the relation of features and label changes over time.

R rows of the sample, K rows with a label and a time, F numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    JudgingSample,
    is_single_id,
    is_single_number,
    read_numbers,
    value_codes,
)
from runner.data.proposal.columns.label_leaks import rank_auc
from runner.data.proposal.features.crosses import add_effects

JUDGED_SHARE = 0.2  # of the rows, the last ones
FEWEST_ROWS = 1000
MOST_COLUMNS = 100  # of ids, and of numbers
PARTS = 20  # of the judged rows; the spread of their gains gives the error of the mean
LEAST_GAIN, ERRORS = 0.01, 4.0  # of AUC


def describe_drift(sample: JudgingSample, roles: Mapping[str, Role], time: str) -> list[str]:
    """Return a note if the newer rows alone predict the last rows better than all rows before."""
    seconds_R = sample.seconds_R
    if seconds_R is None:
        return []
    codes = [value_codes(sample.table[n]) for n, r in roles.items() if is_single_id(r)]
    names = [n for n, r in roles.items() if is_single_number(r)]
    numbers = [read_numbers(sample.table[n], roles[n].settings) for n in names[:MOST_COLUMNS]]
    x_RF = np.column_stack([*map(_standardise, numbers), np.zeros(len(seconds_R))])
    for y_R in sample.labels:
        known = np.flatnonzero(~np.isnan(y_R) & ~np.isnan(seconds_R))
        known = known[np.argsort(seconds_R[known], kind="stable")]
        y_K, start = y_R[known], int(len(known) * (1 - JUDGED_SHARE))
        newer, held_out = np.arange(start // 2, start), np.arange(start, len(known))
        if len(known) < FEWEST_ROWS or any(y_K[rows].std() == 0 for rows in (newer, held_out)):
            continue
        columns = [code_R[known] for code_R in codes[:MOST_COLUMNS]]
        of_all, of_newer = (
            add_effects(columns, y_K, rows, x_RF[known]) for rows in (np.arange(start), newer)
        )
        gains = [
            rank_auc(of_newer[part], y_K[part]) - rank_auc(of_all[part], y_K[part])
            for part in (held_out[first::PARTS] for first in range(PARTS))
        ]
        error = np.std(gains, ddof=1) / PARTS**0.5
        if np.mean(gains) > max(LEAST_GAIN, ERRORS * error):
            aucs = [rank_auc(logits_K[held_out], y_K[held_out]) for logits_K in (of_newer, of_all)]
            day = seconds_R[known[newer[0]]].astype("M8[s]").astype("M8[D]")
            return [
                f"{time}: old rows mislead: effects fitted to rows from {day} on predict the last "
                f"fifth of the rows with an AUC of {aucs[0]:.3f}, those fitted to older rows too "
                f"with {aucs[1]:.3f}: compare with a training on rows from {day} on alone"
            ]
    return []


def _standardise(x_R: np.ndarray) -> np.ndarray:
    known_R = np.isfinite(x_R)
    deviation = x_R[known_R].std() if known_R.any() else 0.0
    if not deviation:
        return np.zeros(len(x_R))
    return np.where(known_R, (x_R - x_R[known_R].mean()) / deviation, 0.0)
