"""The loss of one update, averaged over its rows."""

from __future__ import annotations

import torch

from runner.training.update.task import StepOutput


def mean_losses(output: StepOutput) -> dict[str, float]:
    """Return the weighted mean of each part of the loss over an update's rows. Synchronises."""
    totals: dict[str, float] = {}
    total_weight = 0.0
    for prediction, losses in zip(output.predictions, output.losses, strict=True):
        weights_B = prediction.weights_B.double()
        total_weight += float(weights_B.sum())
        for name, loss_B in losses.items():
            # a row of weight 0 may hold anything
            weighted_B = torch.where(weights_B > 0, loss_B.double() * weights_B, 0.0)
            totals[name] = totals.get(name, 0.0) + float(weighted_B.sum())
    return {name: total / max(total_weight, 1e-38) for name, total in totals.items()}
