"""Reliability diagrams: predicted against observed rates, in bins.

N rows, T tasks, F fine bins, K bins of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from runner.batch import TaskSpec
from runner.metrics.score_store import BIN_RANGE

NUM_BINS = 20
_NUM_FINE_BINS = 1 << 14  # of equal width on the logit axis, before neighbours are merged


def compute_reliability(
    state: Mapping[str, Tensor], tasks: Sequence[TaskSpec], num_bins: int = NUM_BINS
) -> dict[str, dict[str, list[float]]]:
    """Compute the points of a reliability diagram for each binary task. Synchronises.

    The bins have equal weights, unless predictions are equal.

    Args:
        state: of a MetricSet after a pass.

    Returns:
        Task -> `predicted` and `observed`, the mean prediction and the rate of positives of each
        bin in ascending order, and `weight`. Empty if the state has no scores, because no
        metric needs ranks.
    """
    binary = [task.name for task in tasks if task.kind == "binary"]
    if "histogram" in state:
        histogram_T2F = state["histogram"].cpu().numpy()  # sync
        return {n: _merge_bins(h[0], h[1], num_bins) for n, h in zip(binary, histogram_T2F)}
    if "rows" not in state:
        return {}
    diagrams = {}
    for index, name in enumerate(binary):
        columns = [index, len(binary) + index, 2 * len(binary)]
        logits_N, labels_N, weights_N = state["rows"][:, columns].double().T.cpu().numpy()  # sync
        diagrams[name] = _merge_bins(*_fine_histogram(logits_N, labels_N, weights_N), num_bins)
    return diagrams


def _fine_histogram(
    logits_N: np.ndarray, labels_N: np.ndarray, weights_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positive and negative weight in each fine bin: two [F]."""
    bounded_N = np.clip(np.nan_to_num(logits_N), -BIN_RANGE, BIN_RANGE)
    scaled_N = (bounded_N + BIN_RANGE) * (_NUM_FINE_BINS / (2 * BIN_RANGE))
    bin_N = np.minimum(scaled_N.astype(np.int64), _NUM_FINE_BINS - 1)
    positive_N = weights_N * labels_N
    return (
        np.bincount(bin_N, positive_N, _NUM_FINE_BINS),
        np.bincount(bin_N, weights_N - positive_N, _NUM_FINE_BINS),
    )


def _merge_bins(
    positive_F: np.ndarray, negative_F: np.ndarray, num_bins: int
) -> dict[str, list[float]]:
    """Merge neighbouring bins until each has its share of the weight."""
    weight_F = positive_F + negative_F
    total = weight_F.sum()
    if not total > 0:
        return {"predicted": [], "observed": [], "weight": []}
    width = 2 * BIN_RANGE / len(weight_F)
    middles_F = -BIN_RANGE + width * (np.arange(len(weight_F)) + 0.5)
    predicted_F = 1 / (1 + np.exp(-middles_F))
    # a fine bin is assigned by the middle of its weight, which is best for a heavy one
    position_F = (np.cumsum(weight_F) - weight_F / 2) / total * num_bins
    bin_F = np.minimum(position_F.astype(np.int64), num_bins - 1)
    weight_K = np.bincount(bin_F, weight_F, num_bins)
    used_K = weight_K > 0
    weight_K = weight_K[used_K]
    predicted_K = np.bincount(bin_F, weight_F * predicted_F, num_bins)[used_K] / weight_K
    observed_K = np.bincount(bin_F, positive_F, num_bins)[used_K] / weight_K
    return {
        "predicted": predicted_K.tolist(),
        "observed": observed_K.tolist(),
        "weight": weight_K.tolist(),
    }
