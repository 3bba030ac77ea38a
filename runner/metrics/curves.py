"""Areas under the ROC and precision-recall curves, weighted, exact or over bins.

Own code: torchmetrics 1.0.3 knows no row weights and calls the AUROC of one class 0.0.
All functions work on levels: the positive and negative weight at each distinct score, ascending.
Where the weights are whole numbers every sum is exact, so that the order of rows cannot matter.

N rows, K levels (distinct scores, or bins).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def group_by_score(
    scores_N: NDArray, positive_N: Floats, negative_N: Floats
) -> tuple[Floats, Floats]:
    """Positive and negative weight at each distinct score, in ascending order: two [K]."""
    if not len(scores_N):
        return np.zeros(0), np.zeros(0)
    order_N = np.argsort(scores_N)
    sorted_N = scores_N[order_N]
    starts_K = np.concatenate(([0], 1 + np.flatnonzero(sorted_N[1:] != sorted_N[:-1])))
    return (
        np.add.reduceat(positive_N[order_N], starts_K),
        np.add.reduceat(negative_N[order_N], starts_K),
    )


def roc_auc(positive_K: Floats, negative_K: Floats) -> float:
    """Chance that a positive scores above a negative, ties counted half; NaN on one class."""
    pairs = positive_K.sum() * negative_K.sum()
    if not pairs > 0:
        return math.nan
    below_K = np.cumsum(negative_K) - negative_K
    return float((positive_K * (below_K + negative_K / 2)).sum() / pairs)


def roc_auc_error(positive_K: Floats, negative_K: Floats) -> float:
    """How far binning can move `roc_area`: pairs inside one bin count between none and all."""
    pairs = positive_K.sum() * negative_K.sum()
    return float((positive_K * negative_K).sum() / 2 / pairs) if pairs > 0 else math.nan


def average_precision(positive_K: Floats, negative_K: Floats) -> float:
    """Area under the precision-recall steps (no interpolation); NaN without a positive."""
    total = positive_K.sum()
    if not total > 0:
        return math.nan
    positive_K, all_K = positive_K[::-1], (positive_K + negative_K)[::-1]
    precision_K = np.cumsum(positive_K) / np.maximum(np.cumsum(all_K), np.finfo(np.float64).tiny)
    return float((positive_K * precision_K).sum() / total)


def average_precision_error(positive_K: Floats, negative_K: Floats) -> float:
    """How far binning can move `average_precision`: best and worst order inside each bin."""
    total = positive_K.sum()
    if not total > 0:
        return math.nan
    positive_K, negative_K = positive_K[::-1], negative_K[::-1]
    upto_K, negative_upto_K = np.cumsum(positive_K), np.cumsum(negative_K)
    tiny = np.finfo(np.float64).tiny
    best_K = upto_K / np.maximum(upto_K + negative_upto_K - negative_K, tiny)
    worst_K = (upto_K - positive_K) / np.maximum(upto_K - positive_K + negative_upto_K, tiny)
    return float((positive_K * np.maximum(best_K - worst_K, 0)).sum() / total)


def grouped_roc_auc(
    groups_N: NDArray[np.int64], scores_N: NDArray, positive_N: Floats, negative_N: Floats
) -> tuple[float, float]:
    """Mean of the groups' ROC areas: weighted by the weight of their rows (GAUC, Zhou et al.,
    arXiv:1706.06978, eq. 7), and unweighted. Groups of one class are left out; NaN if all are.
    """
    if not len(groups_N):
        return math.nan, math.nan
    order_N = np.lexsort((scores_N, groups_N))
    groups_N, scores_N = groups_N[order_N], scores_N[order_N]
    new_group_N = np.concatenate(([True], groups_N[1:] != groups_N[:-1]))
    new_level_N = new_group_N | np.concatenate(([True], scores_N[1:] != scores_N[:-1]))
    level_K, group_G = np.flatnonzero(new_level_N), np.flatnonzero(new_group_N)
    positive_K = np.add.reduceat(positive_N[order_N], level_K)
    negative_K = np.add.reduceat(negative_N[order_N], level_K)
    first_level_G = np.searchsorted(level_K, group_G)
    group_of_K = np.cumsum(new_group_N[level_K]) - 1
    below_K = np.cumsum(negative_K) - negative_K
    below_K = below_K - below_K[first_level_G][group_of_K]
    wins_G = np.add.reduceat(positive_K * (below_K + negative_K / 2), first_level_G)
    positive_G = np.add.reduceat(positive_K, first_level_G)
    negative_G = np.add.reduceat(negative_K, first_level_G)
    both_G = positive_G * negative_G > 0
    if not both_G.any():
        return math.nan, math.nan
    area_G = wins_G[both_G] / (positive_G * negative_G)[both_G]
    weight_G = (positive_G + negative_G)[both_G]
    return float((area_G * weight_G).sum() / weight_G.sum()), float(area_G.mean())
