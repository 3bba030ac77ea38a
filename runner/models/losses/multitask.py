"""Losses of several tasks, whose kinds may differ.

B batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Prediction, Schema, TaskSpec
from runner.models.argument_types import ByTask
from runner.models.losses.protocol import expand_per_task


class ByKind(nn.Module):
    """The weighted sum of binary cross-entropies of binary tasks and squared errors of regressions.

    Args:
        schema: needs at least one task.
        weights: a number, or numbers by task (1 for a task that is left out); None for 1.

    Raises:
        ValueError: if a weight is below 0 or of an unknown task, if all weights are 0, or if there
            is no task.
    """

    def __init__(self, schema: Schema, *, weights: ByTask = None) -> None:
        super().__init__()
        self.tasks = require_tasks(schema)
        self.weights = expand_per_task(weights, [t.name for t in self.tasks], "weights")
        if not any(self.weights):
            raise ValueError(f"weights={weights}: at least one task must have a weight above 0")

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses = losses_by_kind(self.tasks, prediction)
        return {
            name: loss_B if weight == 1 else loss_B * weight
            for (name, loss_B), weight in zip(losses.items(), self.weights, strict=True)
        }


class Uncertainty(nn.Module):
    """Learned weights by the noise of tasks (Kendall et al. 2018, arXiv:1705.07115, eq. 7 and 10).

    With s = log variance, a task's loss is exp(-s) L + s / 2 if it is binary (the variance is a
    temperature), exp(-s) L / 2 + s / 2 if it is a regression. The sum may be negative. s is a
    parameter of the loss, which the dense optimizer trains with its rate and its weight decay.

    Args:
        schema: needs at least one task.
        initial: s of every task at the start.
    """

    def __init__(self, schema: Schema, *, initial: float = 0.0) -> None:
        super().__init__()
        self.tasks = require_tasks(schema)
        self.log_variances = nn.Parameter(torch.full((len(self.tasks),), float(initial)))

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses = losses_by_kind(self.tasks, prediction)
        return {
            task.name: losses[task.name] * torch.exp(-s) * (1.0 if task.kind == "binary" else 0.5)
            + 0.5 * s
            for task, s in zip(self.tasks, self.log_variances.unbind(), strict=True)
        }


def require_tasks(schema: Schema) -> tuple[TaskSpec, ...]:
    """Return the tasks.

    Raises:
        ValueError: if there is none.
    """
    if not schema.tasks:
        raise ValueError("a loss needs a task; the dataset has none")
    return schema.tasks


def losses_by_kind(tasks: Sequence[TaskSpec], prediction: Prediction) -> dict[str, Tensor]:
    """Return [B] for each task: binary cross-entropy of its logit, or squared error."""
    columns = zip(
        tasks, prediction.logits_BT.unbind(1), prediction.labels_BT.unbind(1), strict=True
    )
    return {
        task.name: functional.binary_cross_entropy_with_logits(x_B, y_B, reduction="none")
        if task.kind == "binary"
        else (x_B - y_B).square()
        for task, x_B, y_B in columns
    }
