"""How far predicted probabilities can be trusted: predicted against observed rate, in bins.

N rows or fine bins, T tasks, F fine bins, K bins of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from runner.batch import TaskSpec
from runner.metrics.score_store import BIN_RANGE

NUM_BINS = 20
_NUM_FINE = 1 << 14  # of equal width on the logit axis, before neighbours are put together


def compute_reliability(
    state: Mapping[str, Tensor], tasks: Sequence[TaskSpec], num_bins: int = NUM_BINS
) -> dict[str, dict[str, list[float]]]:
    """By binary task: mean prediction, rate of positives and weight of each bin, ascending.

    The bins are of equal weight, as far as equal predictions allow. Synchronises.

    Args: state: of a MetricSet after a pass. Returns: {} where it kept nothing to make them from
    (none of its metrics needs ranks).
    """
    binary = [task.name for task in tasks if task.kind == "binary"]
    if "histogram" in state:
        histogram_T2F = state["histogram"].cpu().numpy()  # sync
        return {n: _merge_bins(h[0], h[1], num_bins) for n, h in zip(binary, histogram_T2F)}
    if "rows" not in state:
        return {}
    found = {}
    for index, name in enumerate(binary):
        pick = [index, len(binary) + index, 2 * len(binary)]
        logits_N, labels_N, weights_N = state["rows"][:, pick].double().T.cpu().numpy()  # sync
        found[name] = _merge_bins(*_fine_histogram(logits_N, labels_N, weights_N), num_bins)
    return found


def _fine_histogram(
    logits_N: np.ndarray, labels_N: np.ndarray, weights_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positive and negative weight in each fine bin: two [F]."""
    inside_N = np.clip(np.nan_to_num(logits_N), -BIN_RANGE, BIN_RANGE)
    scaled_N = (inside_N + BIN_RANGE) * (_NUM_FINE / (2 * BIN_RANGE))
    bin_N = np.minimum(scaled_N.astype(np.int64), _NUM_FINE - 1)
    positive_N = weights_N * labels_N
    return (
        np.bincount(bin_N, positive_N, _NUM_FINE),
        np.bincount(bin_N, weights_N - positive_N, _NUM_FINE),
    )


def _merge_bins(
    positive_F: np.ndarray, negative_F: np.ndarray, num_bins: int
) -> dict[str, list[float]]:
    """Puts neighbours together until each bin has its share of the weight."""
    weight_F = positive_F + negative_F
    total = weight_F.sum()
    if not total > 0:
        return {"predicted": [], "observed": [], "weight": []}
    width = 2 * BIN_RANGE / len(weight_F)
    middles_F = -BIN_RANGE + width * (np.arange(len(weight_F)) + 0.5)
    predicted_F = 1 / (1 + np.exp(-middles_F))
    # by the middle of each one's weight, so that a heavy one falls where it mostly lies
    place_F = (np.cumsum(weight_F) - weight_F / 2) / total * num_bins
    bin_F = np.minimum(place_F.astype(np.int64), num_bins - 1)
    weight_K = np.bincount(bin_F, weight_F, num_bins)
    there_K = weight_K > 0
    weight_K = weight_K[there_K]
    predicted_K = np.bincount(bin_F, weight_F * predicted_F, num_bins)[there_K] / weight_K
    observed_K = np.bincount(bin_F, positive_F, num_bins)[there_K] / weight_K
    return {
        "predicted": predicted_K.tolist(),
        "observed": observed_K.tolist(),
        "weight": weight_K.tolist(),
    }
