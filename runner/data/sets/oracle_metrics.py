"""The best reachable metrics of rows whose true probabilities are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NUM_BINS = 1 << 20  # of the probability; ties within a bin move the AUC by less than 1e-6


@dataclass
class OracleMetrics:
    """Counts labels by true probability, in bounded memory; can be merged."""

    positives: np.ndarray = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    negatives: np.ndarray = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    loss_sum: float = 0.0

    def update(self, labels_R: np.ndarray, probability_R: np.ndarray) -> None:
        p_R = probability_R.astype(np.float64)
        bins_R = np.minimum((p_R * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        self.positives += np.bincount(bins_R[labels_R == 1], minlength=NUM_BINS)
        self.negatives += np.bincount(bins_R[labels_R == 0], minlength=NUM_BINS)
        self.loss_sum -= float(np.log(np.where(labels_R == 1, p_R, 1 - p_R)).sum())

    def merge(self, other: OracleMetrics) -> None:
        self.positives += other.positives
        self.negatives += other.negatives
        self.loss_sum += other.loss_sum

    def compute(self) -> dict[str, float]:
        """Return the log loss in nats, and if there are both classes the AUC, ties counted half."""
        num_positive, num_negative = int(self.positives.sum()), int(self.negatives.sum())
        results = {"log_loss": self.loss_sum / max(num_positive + num_negative, 1)}
        if num_positive and num_negative:
            below = np.cumsum(self.negatives) - self.negatives
            wins = float((self.positives * (below + self.negatives / 2)).sum())
            results["auc"] = wins / (num_positive * num_negative)
        return results
