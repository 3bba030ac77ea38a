"""Losses of several tasks, whose kinds may differ.

B batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.batch import Prediction, Schema, TaskSpec, columns_by_label
from runner.models.argument_types import ByTask
from runner.models.losses.protocol import (
    binary_losses,
    expand_per_task,
    softmax_losses,
    tweedie_losses,
)


class ByKind(nn.Module):
    """The weighted sum of the cross-entropies of labels, and the squared errors of regressions.

    For a regression with a log link it is the deviance of Tweedie's distribution, p = 1.5.

    Args:
        schema: needs at least one task.
        weights: a number, or numbers by label (1 for omitted labels); None for 1.

    Raises:
        ValueError: if a weight is below 0 or of an unknown task, if all weights are 0, or if there
            is no task.
    """

    def __init__(self, schema: Schema, *, weights: ByTask = None) -> None:
        super().__init__()
        self.tasks = require_tasks(schema)
        self.weights = expand_per_task(weights, list(columns_by_label(self.tasks)), "weights")
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

    With s = log variance, a label's loss is exp(-s) L + s / 2 if it is binary or has classes (the
    variance is a temperature), exp(-s) L / 2 + s / 2 if it is a regression. The sum may be
    negative. s is a parameter of the loss, which the dense optimizer trains with its rate and its
    weight decay.

    Args:
        schema: needs at least one task.
        initial: s of every label at the start.
    """

    def __init__(self, schema: Schema, *, initial: float = 0.0) -> None:
        super().__init__()
        self.tasks = require_tasks(schema)
        self.scales = [  # of each label
            1.0 if self.tasks[columns.start].kind == "binary" else 0.5
            for columns in columns_by_label(self.tasks).values()
        ]
        self.log_variances = nn.Parameter(torch.full((len(self.scales),), float(initial)))

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses = losses_by_kind(self.tasks, prediction)
        variances = self.log_variances.unbind()
        return {
            name: loss_B * torch.exp(-s) * scale + 0.5 * s
            for (name, loss_B), s, scale in zip(losses.items(), variances, self.scales, strict=True)
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
    """Return [B] for each label: its cross-entropy, squared error, or deviance with a log link."""
    logits, labels = prediction.logits_BT.unbind(1), prediction.labels_BT.unbind(1)
    losses = {}
    for name, columns in columns_by_label(tasks).items():
        task, x_B, y_B = (of[columns.start] for of in (tasks, logits, labels))
        if task.one_of:
            x_BK, y_BK = (torch.stack(of[columns], dim=1) for of in (logits, labels))
            losses[name] = softmax_losses(x_BK, y_BK).sum(1)
        elif task.kind == "binary":
            losses[name] = binary_losses(x_B, y_B)
        elif task.link:
            losses[name] = tweedie_losses(x_B, y_B)
        else:
            losses[name] = (x_B - y_B).square()
    return losses
