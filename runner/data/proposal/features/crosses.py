"""Proposes crosses: pairs of ids that predict the label better than the two columns do.

R rows of the sample, K rows with a label.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    Halves,
    JudgedLabel,
    JudgingSample,
    Proposed,
    Rows,
    is_single_id,
    value_codes,
)
from runner.data.proposal.columns.label_leaks import rank_auc

MOST_COLUMNS = 40  # tried with each other; if there are more, those with the fewest values
MOST_CELLS = 100_000  # pairs of values of two columns
MOST_CROSSES = 3
ROUNDS = 4  # in which the effects of all columns converge
PRIOR = 2.0  # the precision of an effect on the logit, before any row is seen
# What a cross must gain over the effects of all columns, in AUC on the half of the rows that its
# effects were not fitted to. With few rows, chance alone gains as much.
LEAST_GAIN, CHANCE_GAIN = 0.01, 1.5  # the latter divided by the root of the rows
# If a low-rank approximation of the pairs' effects gains so much more than the effects, each value
# has a character, such as a user's taste. Embeddings learn that better than memorised pairs do.
RANKS, MUCH_MORE = (1, 2, 4), 1.3
ERRORS = 5.0  # standard errors of the agreement of both halves' residuals, see `_left_over`
ROOM = 4  # rows of the embedding table for each pair of values, so that few pairs share a row

# Sums -> the negative gradient of each row's loss, and its expected curvature.
Slope = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def propose_crosses(
    sample: JudgingSample, roles: Mapping[str, Role], used_names: Collection[str]
) -> Proposed:
    """Propose crosses of two columns of single ids whose pairs of values predict the label."""
    codes_by_name = {n: value_codes(sample.table[n]) for n, r in roles.items() if is_single_id(r)}
    few = sorted(codes_by_name, key=lambda name: int(codes_by_name[name].max(initial=0)))
    codes_by_name = {n: c for n, c in codes_by_name.items() if n in few[:MOST_COLUMNS]}
    proposed: dict[str, dict[str, Any]] = {}
    notes = []
    for label in sample.judged_labels():
        for first, second in _choose_pairs(codes_by_name, label):
            name = f"{first}_{second}"
            if name in proposed or name in used_names:
                continue
            cells_R = _cells(codes_by_name[first], codes_by_name[second])
            num_cells = len(np.unique(cells_R))
            num_rows = 1 << int(np.ceil(np.log2(ROOM * num_cells)))
            proposed[name] = {"cross": [first, second], "num_rows": num_rows}
            notes.append(
                f"{first} and {second} predict more together than each alone: their pairs are "
                f"proposed as {name}"
            )
    return proposed, notes


def _cells(first_K: np.ndarray, second_K: np.ndarray) -> np.ndarray:
    return np.asarray(first_K * (int(second_K.max(initial=0)) + 1) + second_K)


def _choose_pairs(
    codes_by_name: Mapping[str, np.ndarray], label: JudgedLabel
) -> list[tuple[str, str]]:
    """Return the pairs of columns with the largest gains, each over the pairs before it."""
    known_R, y_K, halves = label
    codes = {name: codes_R[known_R] for name, codes_R in codes_by_name.items()}
    columns = list(codes.values())
    # the logits of all rows, with effects fitted to either half
    logits_by_half = [add_effects(columns, y_K, half) for half in halves]
    pairs = {
        pair: _cells(codes[pair[0]], codes[pair[1]])
        for pair in combinations(codes, 2)
        if (codes[pair[0]].max() + 1) * (codes[pair[1]].max() + 1) <= MOST_CELLS
    }
    least = max(LEAST_GAIN, CHANCE_GAIN / len(y_K) ** 0.5)
    chosen: list[tuple[str, str]] = []
    for _ in range(MOST_CROSSES):
        gains = {
            pair: gain_of_cells(cells_K, y_K, logits_by_half, halves)
            for pair, cells_K in pairs.items()
            if _left_over(cells_K, y_K, logits_by_half, halves) > ERRORS
        }
        best = max(gains, key=lambda pair: gains[pair], default=None)
        if best is None or gains[best] < least:
            break
        of_both = codes[best[0]], codes[best[1]]
        by_factors = _gain_of_factors(*of_both, y_K, logits_by_half, halves)
        columns.append(pairs.pop(best))
        if by_factors < MUCH_MORE * gains[best]:
            chosen.append(best)
        logits_by_half = [add_effects(columns, y_K, half) for half in halves]
    return chosen


def add_effects(
    columns: Sequence[np.ndarray],
    y_K: np.ndarray,
    half: Rows,
    x_KF: np.ndarray | None = None,
    logits_K: np.ndarray | None = None,
) -> np.ndarray:
    """Return the logits [K] of an additive model, fitted to one half of the rows.

    Args:
        columns: the number of each row's value, [K] each.
        x_KF: numbers, of which the model is linear.
        logits_K: the offset of the effects; None: the logit of the mean label.
    """
    if logits_K is None:
        rate = float(y_K[half].mean())
        logits_K = np.full(len(y_K), np.log(rate / (1 - rate)))
    return fit_effects(columns, logits_K, half, partial(_logistic, y_K[half]), ROUNDS, x_KF)


def fit_effects(
    columns: Sequence[np.ndarray],
    sum_K: np.ndarray,
    half: Rows,
    slope_of: Slope,
    rounds: int,
    x_KF: np.ndarray | None = None,
) -> np.ndarray:
    """Return a sum [K] with the effects of columns, fitted by Newton steps.

    Args:
        columns: the number of each row's value, [K] each.
        sum_K: the offset of the effects.
        slope_of: gives the slopes and curvatures of their loss at their sums.
        rounds: how many; in each, every column takes one step.
        x_KF: numbers, of which the sum is linear.
    """
    for _ in range(rounds):
        if x_KF is not None:
            slope_H, curve_H = slope_of(sum_K[half])
            x_HF = x_KF[half]
            curve_FF = (x_HF.T * curve_H) @ x_HF + PRIOR * np.eye(x_HF.shape[1])
            sum_K = sum_K + x_KF @ np.linalg.solve(curve_FF, x_HF.T @ slope_H)
        for codes_K in columns:
            sum_K = sum_K + _effects(codes_K, half, *slope_of(sum_K[half]))
    return sum_K


def _logistic(y_H: np.ndarray, logits_H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # of logits far below 0, whose sigmoid is 0
        p_H = 1 / (1 + np.exp(-logits_H))
    return y_H - p_H, p_H * (1 - p_H)


def _effects(
    codes_K: np.ndarray, half: Rows, slope_H: np.ndarray, curve_H: np.ndarray
) -> np.ndarray:
    """Return one Newton step of the effect of each row's value [K], from one half of the rows."""
    size = int(codes_K.max()) + 1
    slope = np.bincount(codes_K[half], weights=slope_H, minlength=size)
    curve = np.bincount(codes_K[half], weights=curve_H, minlength=size)
    return np.asarray((slope / (curve + PRIOR))[codes_K])


def _left_over(
    cells_K: np.ndarray, y_K: np.ndarray, logits_by_half: Sequence[np.ndarray], halves: Halves
) -> float:
    """Return how far the residuals of both halves agree in the cells, in standard errors."""
    size = int(cells_K.max()) + 1
    sums = [
        np.bincount(cells_K[half], weights=_logistic(y_K, x_K)[0][half], minlength=size)
        for half, x_K in zip(halves, logits_by_half)
    ]
    products = sums[0] * sums[1]
    return float(products.sum() / max(float((products**2).sum()) ** 0.5, 1e-12))


def gain_of_cells(
    cells_K: np.ndarray, y_K: np.ndarray, logits_by_half: Sequence[np.ndarray], halves: Halves
) -> float:
    """Return the AUC that effects of the cells add, on the half that they were not fitted to."""
    more = [
        x_K + _effects(cells_K, half, *_logistic(y_K[half], x_K[half]))
        for half, x_K in zip(halves, logits_by_half)
    ]
    return auc_gain(logits_by_half, more, y_K, halves)


def auc_gain(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], y_K: np.ndarray, halves: Halves
) -> float:
    """Return the gain in AUC of logits fitted to either half, each on the other half."""
    gains = [
        rank_auc(more_K[held_out], y_K[held_out]) - rank_auc(x_K[held_out], y_K[held_out])
        for held_out, x_K, more_K in zip(halves[::-1], before, after)
    ]
    return float(np.mean(gains))


def _gain_of_factors(
    first_K: np.ndarray,
    second_K: np.ndarray,
    y_K: np.ndarray,
    logits_by_half: Sequence[np.ndarray],
    halves: Halves,
) -> float:
    """Return the AUC that a low-rank approximation of the cells' effects adds."""
    shape = int(first_K.max()) + 1, int(second_K.max()) + 1
    gains = []
    for fitted, held_out, x_K in zip(halves, halves[::-1], logits_by_half):
        cells_K = _cells(first_K, second_K)
        sums = [
            np.bincount(cells_K[fitted], weights=part_H, minlength=shape[0] * shape[1])
            for part_H in _logistic(y_K[fitted], x_K[fitted])
        ]
        shares = sums[1] / (sums[1] + PRIOR)  # how far the prior shrinks an effect
        effects = sums[0] / (sums[1] + PRIOR) / shares.mean()
        u, scales, v = np.linalg.svd(effects.reshape(shape), full_matrices=False)
        before = rank_auc(x_K[held_out], y_K[held_out])
        for rank in RANKS:
            factors = (u[:, :rank] * scales[:rank]) @ v[:rank]
            more_K = x_K[held_out] + factors[first_K[held_out], second_K[held_out]]
            gains.append(rank_auc(more_K, y_K[held_out]) - before)
    return float(np.reshape(gains, (2, len(RANKS))).mean(0).max())
