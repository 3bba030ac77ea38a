"""Areas under the ROC and precision-recall curves, weighted, exact or over bins.

This is our own code because torchmetrics 1.0.3 does not support row weights and returns 0.0 as the
AUROC of one class. All functions work on levels: the positive and negative weight at each distinct
score, ascending. If the weights are integers, every sum is exact, so that the order of rows
does not matter.

N rows, K levels (distinct scores, or bins), G groups.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]


def group_by_score(
    scores_N: Scores, positive_N: Floats, negative_N: Floats
) -> tuple[Floats, Floats]:
    """Return the positive and negative weight at each distinct score, ascending: two [K]."""
    if not len(scores_N):
        return np.zeros(0), np.zeros(0)
    has_labels = np.array_equal(positive_N, positive_N > 0) and np.all(positive_N + negative_N == 1)
    if has_labels and scores_N.dtype == np.float32 and not np.isnan(scores_N).any():
        return _group_labels_by_score(scores_N, positive_N)
    order_N = np.argsort(scores_N)
    sorted_N = scores_N[order_N]
    starts_K = np.concatenate(([0], 1 + np.flatnonzero(sorted_N[1:] != sorted_N[:-1])))
    return (
        np.add.reduceat(positive_N[order_N], starts_K),
        np.add.reduceat(negative_N[order_N], starts_K),
    )


def _group_labels_by_score(scores_N: Scores, labels_N: Floats) -> tuple[Floats, Floats]:
    """Group rows of weight 1 by sorting integers: the score's bits, then the label.

    NumPy sorts numbers with vector instructions, but computes an argsort without: this takes
    half of the time.
    """
    sorted_N = _ordered_bits(scores_N).astype(np.int64)
    sorted_N <<= 1
    sorted_N += labels_N.astype(bool)
    sorted_N.sort()
    differs_N = (sorted_N[1:] ^ sorted_N[:-1]).view(np.uint64) > 1
    lasts_K = np.append(np.flatnonzero(differs_N), len(sorted_N) - 1)
    sorted_N &= 1
    positive_K = np.diff(np.cumsum(sorted_N, out=sorted_N)[lasts_K], prepend=0).astype(np.float64)
    return positive_K, np.diff(lasts_K, prepend=-1) - positive_K


def _ordered_bits(scores_N: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return integers in the order of scores, none of which is NaN."""
    bits_N = (scores_N + np.float32(0)).view(np.int32)  # -0.0 becomes 0.0, to which it is equal
    # The bits of positive numbers are ordered like the numbers; without the sign, those of negative
    # ones are in reverse order.
    bits_N ^= (bits_N >> 31) & np.int32(0x7FFFFFFF)
    return bits_N


def _order_by_group(groups_N: NDArray[np.int64], scores_N: Scores) -> NDArray[np.int64]:
    """Return the `np.lexsort` of scores within groups; the order of equal rows is kept.

    NumPy uses a radix sort only for 16-bit values: two such sorts for the scores, and one per 16
    bits of the groups, take a fifth of the time.
    """
    if scores_N.dtype != np.float32 or np.isnan(scores_N).any():
        return np.lexsort((scores_N, groups_N))
    score_bits_N = _ordered_bits(scores_N).view(np.uint32) ^ np.uint32(1 << 31)
    group_bits_N = groups_N.view(np.uint64) - groups_N.min().view(np.uint64)  # modulo 2^64
    digits = [(score_bits_N, 0), (score_bits_N, 16)]
    digits += [(group_bits_N, i) for i in range(0, int(group_bits_N.max()).bit_length(), 16)]
    order_N = np.arange(len(groups_N))
    for bits_N, shift in digits:
        digit_N = (bits_N[order_N] >> bits_N.dtype.type(shift)).astype(np.uint16)
        order_N = order_N[np.argsort(digit_N, kind="stable")]
    return order_N


def roc_auc(positive_K: Floats, negative_K: Floats) -> float:
    """Return the probability that a positive scores above a negative; NaN for a single class.

    Ties count half.
    """
    pairs = positive_K.sum() * negative_K.sum()
    if not pairs > 0:
        return math.nan
    below_K = np.cumsum(negative_K) - negative_K
    return float((positive_K * (below_K + negative_K / 2)).sum() / pairs)


def roc_auc_error(positive_K: Floats, negative_K: Floats) -> float:
    """Return the maximum change of `roc_auc` by binning: in a bin, no or all pairs may be right."""
    pairs = positive_K.sum() * negative_K.sum()
    return float((positive_K * negative_K).sum() / 2 / pairs) if pairs > 0 else math.nan


def average_precision(positive_K: Floats, negative_K: Floats) -> float:
    """Return the area under the precision-recall steps, uninterpolated; NaN without positives."""
    total = positive_K.sum()
    if not total > 0:
        return math.nan
    positive_K, all_K = positive_K[::-1], (positive_K + negative_K)[::-1]
    precision_K = np.cumsum(positive_K) / np.maximum(np.cumsum(all_K), np.finfo(np.float64).tiny)
    return float((positive_K * precision_K).sum() / total)


def average_precision_error(positive_K: Floats, negative_K: Floats) -> float:
    """Return the maximum change of `average_precision` by binning, from the order within bins."""
    total = positive_K.sum()
    if not total > 0:
        return math.nan
    positive_K, negative_K = positive_K[::-1], negative_K[::-1]
    sum_K, negative_sum_K = np.cumsum(positive_K), np.cumsum(negative_K)
    tiny = np.finfo(np.float64).tiny
    best_K = sum_K / np.maximum(sum_K + negative_sum_K - negative_K, tiny)
    worst_K = (sum_K - positive_K) / np.maximum(sum_K - positive_K + negative_sum_K, tiny)
    return float((positive_K * np.maximum(best_K - worst_K, 0)).sum() / total)


def grouped_roc_auc(
    groups_N: NDArray[np.int64], scores_N: Scores, positive_N: Floats, negative_N: Floats
) -> tuple[float, float]:
    """Return the mean of the groups' ROC areas, weighted by their rows' weight, and unweighted.

    The weighted one is GAUC (Zhou et al., arXiv:1706.06978, eq. 7). Groups with a single class are
    left out; if all are, both means are NaN.
    """
    if not len(groups_N):
        return math.nan, math.nan
    order_N = _order_by_group(groups_N, scores_N)
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
