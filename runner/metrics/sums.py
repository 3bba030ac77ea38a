"""Metrics that are computed from sums over rows.

B rows of a batch, T tasks, S sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

NUM_SUMS = {"binary": 5, "regression": 3}
NUM_SUMS_WITH_R2 = {"binary": 5, "regression": 5}  # including those of the labels
ROUNDING = 1e-12  # of the sum of squared labels, by which the difference of such sums may be wrong


def binary_sums(x_BT: Tensor, y_BT: Tensor) -> Tensor:
    """Return each row's weight, label, probability, log loss and hit: [S, B, T]."""
    bounded_BT = x_BT.clamp(-1e30, 1e30)  # the log loss of an infinite logit would be inf - inf
    log_loss_BT = functional.binary_cross_entropy_with_logits(bounded_BT, y_BT, reduction="none")
    hit_BT = ((x_BT > 0) == (y_BT > 0.5)).double()
    return torch.stack((torch.ones_like(x_BT), y_BT, torch.sigmoid(x_BT), log_loss_BT, hit_BT))


def class_sums(x_BK: Tensor, y_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log loss and the hit of each row of a label with classes, at its class: [B, K].

    The logits are for a class against the rest. A hit is a row whose class has the highest.
    """
    log_loss_BK = y_BK * functional.softplus(-x_BK.clamp(-1e30, 1e30))
    is_top_BK = torch.arange(x_BK.shape[1], device=x_BK.device) == x_BK.argmax(1, keepdim=True)
    return log_loss_BK, torch.where(is_top_BK, y_BK, 0.0)


def class_results(sums_SK: Sequence[Sequence[float]]) -> dict[str, float]:
    """Compute the metrics of a label with classes from the weighted sums of its classes.

    normalized_entropy is the log loss over that of always predicting the rates of the classes.
    """
    (weight, *_), labels_K, _, losses_K, hits_K = sums_SK
    log_loss = ratio(sum(losses_K), weight)
    rates = [ratio(label, weight) for label in labels_K if label]
    normalized = ratio(log_loss, -sum(rate * math.log(rate) for rate in rates if rate < 1))
    return {
        "log_loss": log_loss,
        "normalized_entropy": normalized,
        "rce": 100 * (1 - normalized),
        "accuracy": math.nan if math.isnan(log_loss) else ratio(sum(hits_K), weight),
    }


def binary_results(
    weight: float, label: float, probability: float, log_loss: float, hits: float
) -> dict[str, float]:
    """Compute the metrics of a binary task from its weighted sums.

    normalized_entropy is the log loss over that of always predicting the mean label (He et al.,
    ADKDD 2014), rce is 100 (1 - normalized_entropy), and calibration is the sum of the
    probabilities over that of the labels.
    """
    if math.isnan(log_loss):
        names = ("log_loss", "normalized_entropy", "rce", "calibration", "accuracy")
        return dict.fromkeys(names, math.nan)
    rate = ratio(label, weight)
    entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate) if 0 < rate < 1 else 0.0
    normalized = ratio(ratio(log_loss, weight), entropy)
    return {
        "log_loss": ratio(log_loss, weight),
        "normalized_entropy": normalized,
        "rce": 100 * (1 - normalized),
        "calibration": ratio(probability, label),
        "accuracy": ratio(hits, weight),
    }


def need_both_labels(names: Iterable[str], *, has_positives: bool) -> list[str]:
    """Return the metrics that are undefined if all rows have one label."""
    undefined = {"auc", "gauc", "gauc_unweighted", "normalized_entropy", "rce"}
    if not has_positives:
        undefined |= {"pr_auc", "calibration"}
    return [name for name in names if name in undefined]


def regression_sums(x_BT: Tensor, y_BT: Tensor) -> Tensor:
    """Return each row's weight, absolute and squared error, label and its square: [S, B, T]."""
    error_BT = x_BT - y_BT
    return torch.stack(
        (torch.ones_like(x_BT), error_BT.abs(), error_BT.square(), y_BT, y_BT.square())
    )


def regression_results(
    weight: float,
    absolute: float,
    squared: float,
    label: float = math.nan,
    label_squared: float = math.nan,
) -> dict[str, float]:
    """Compute the metrics of a regression task from its weighted sums.

    r2 is 1 minus the squared error over that of always predicting the mean label; it is NaN if
    all labels are equal up to rounding, or without the sums of the labels.
    """
    mse = ratio(squared, weight)
    mean_squared = label_squared - label * ratio(label, weight)
    if mean_squared <= ROUNDING * label_squared:
        mean_squared = 0.0
    return {
        "mae": ratio(absolute, weight),
        "mse": mse,
        "rmse": math.sqrt(mse),
        "r2": 1 - ratio(squared, mean_squared),
    }


def ratio(part: float, whole: float) -> float:
    """Divide; NaN if `whole` is 0."""
    return part / whole if whole != 0 else math.nan
