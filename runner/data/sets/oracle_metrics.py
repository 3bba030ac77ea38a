"""The best reachable metrics of rows whose true probability is known, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

BINS = 1 << 20  # of the probability; ties within a bin move the AUC by less than 1e-6


@dataclass
class OracleMetrics:
    """Collects labels and true probabilities; mergeable."""

    positives: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    negatives: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    loss_sum: float = 0.0

    def update(self, labels_R: np.ndarray, probability_R: np.ndarray) -> None:
        p = probability_R.astype(np.float64)
        bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        self.positives += np.bincount(bins[labels_R == 1], minlength=BINS)
        self.negatives += np.bincount(bins[labels_R == 0], minlength=BINS)
        self.loss_sum -= float(np.log(np.where(labels_R == 1, p, 1 - p)).sum())

    def merge(self, other: OracleMetrics) -> None:
        self.positives += other.positives
        self.negatives += other.negatives
        self.loss_sum += other.loss_sum

    def compute(self) -> dict[str, float]:
        """AUC by ranks with ties counted half, log loss in nats; without both classes no AUC."""
        num_positive, num_negative = int(self.positives.sum()), int(self.negatives.sum())
        found = {"log_loss": self.loss_sum / max(num_positive + num_negative, 1)}
        if num_positive and num_negative:
            below = np.cumsum(self.negatives) - self.negatives
            wins = float((self.positives * (below + self.negatives / 2)).sum())
            found["auc"] = wins / (num_positive * num_negative)
        return found
