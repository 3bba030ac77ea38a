"""Losses of one row and one task at a time.

B batch, T tasks; x logit or prediction, y label, s sigmoid.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Prediction, Schema, class_columns, columns_by_label
from runner.config_key import Key
from runner.config_value import check_arguments
from runner.models.argument_types import ByTask, FromZero, ShareBelow1, ShareOrNone
from runner.models.losses.protocol import (
    TWEEDIE_POWER,
    binary_losses,
    expand_per_task,
    softmax_losses,
    split_by_task,
    tweedie_losses,
)
from runner.models.requirements import require_log_links, require_task_kind


class BCE(nn.Module):
    """Cross-entropy of each label, computed in float32 even under autocast.

    -(p y' log s(x) + (1 - y') log(1 - s(x))), y' = (1 - e) y + e / 2. Of a label of K classes it is
    the sum of -p_k y'_k log s(x_k) over them, y' = (1 - e) y + e / K, where s(x_k) is the softmax.

    Args:
        schema: needs binary tasks, of which some may be classes.
        label_smoothing: e, from 0 to below 1.
        pos_weight: p, a number, or numbers by task (1 for omitted tasks); None for 1.

    Raises:
        ValueError: if a task is not binary, or if a setting is out of range.
    """

    pos_weight: Tensor | None

    def __init__(
        self, schema: Schema, *, label_smoothing: ShareBelow1 = 0.0, pos_weight: ByTask = None
    ) -> None:
        super().__init__()
        names = require_task_kind(schema, "binary", "BCE", classes=True)
        check_arguments(BCE.__init__, locals())
        self.label_smoothing = label_smoothing
        self.columns = columns_by_label(schema.tasks)
        self.classes = class_columns(schema.tasks)
        weights = expand_per_task(pos_weight, names, "pos_weight")
        buffer = None if pos_weight is None else torch.tensor(weights)
        self.register_buffer("pos_weight", buffer, persistent=False)

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        labels_BT = prediction.labels_BT
        if self.label_smoothing:
            labels_BT = labels_BT * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses_BT = binary_losses(prediction.logits_BT, labels_BT, pos_weight=self.pos_weight)
        if not self.classes:
            return split_by_task(tuple(self.columns), losses_BT)
        losses = {name: losses_BT[:, columns.start] for name, columns in self.columns.items()}
        return losses | {name: self._of_classes(prediction, c) for name, c in self.classes.items()}

    def _of_classes(self, prediction: Prediction, columns: slice) -> Tensor:
        """Return [B], the cross-entropy of a label of classes."""
        y_BK, rest = prediction.labels_BT[:, columns], self.label_smoothing
        y_BK = y_BK * (1 - rest) + rest / y_BK.shape[1]
        losses_BK = softmax_losses(prediction.logits_BT[:, columns], y_BK)
        if self.pos_weight is not None:
            losses_BK = losses_BK * self.pos_weight[columns]
        return losses_BK.sum(1)


class Focal(nn.Module):
    """Focal loss, eq. 5 of Lin et al. 2017 (arXiv:1708.02002), in which easy rows count less.

    -a_y (1 - q)^g log q, where q = s(x) if y = 1, else 1 - s(x); a_1 = alpha, a_0 = 1 - alpha. With
    gamma = 0 and without alpha it is binary cross-entropy.

    Args:
        schema: needs binary tasks.
        gamma: g, from 0.
        alpha: weight of positives, between 0 and 1; None if both labels weigh 1.

    Raises:
        ValueError: if a task is not binary, or if a setting is out of range.
    """

    def __init__(self, schema: Schema, *, gamma: FromZero = 2.0, alpha: ShareOrNone = None) -> None:
        super().__init__()
        self.names = require_task_kind(schema, "binary", "Focal")
        check_arguments(Focal.__init__, locals())
        self.gamma, self.alpha = gamma, alpha

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        x_BT, y_BT = prediction.logits_BT, prediction.labels_BT
        margin_BT = x_BT * (2 * y_BT - 1)
        # (1 - q)^g by the logarithm of s(-margin), which is exact even if q is close to 0 or 1
        easy_BT = torch.exp(self.gamma * functional.logsigmoid(-margin_BT))
        losses_BT = -easy_BT * functional.logsigmoid(margin_BT)
        if self.alpha is not None:
            losses_BT = losses_BT * (1 - self.alpha + (2 * self.alpha - 1) * y_BT)
        return split_by_task(self.names, losses_BT)


class MSE(nn.Module):
    """Squared error of each task, (x - y)^2.

    Raises:
        ValueError: if a task is not a regression.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.names = require_task_kind(schema, "regression", "MSE")

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses_BT = (prediction.logits_BT - prediction.labels_BT).square()
        return split_by_task(self.names, losses_BT)


class Tweedie(nn.Module):
    """Deviance of each task from Tweedie's distribution with a log link, see `tweedie_losses`.

    For amounts and counts, whose spread grows with their mean (Jorgensen 1987, "Exponential
    dispersion models"). The mean of the predictions is that of the labels, while that of
    exponentials of predicted logarithms is below it.

    Args:
        schema: needs tasks with `link: log`.
        power: p, from 1, for counts (Poisson), to below 2, for amounts of which few are 0 (gamma).

    Raises:
        ValueError: if a task has no such link, or if the power is out of range.
    """

    def __init__(
        self, schema: Schema, *, power: Annotated[float, Key(ge=1, lt=2)] = TWEEDIE_POWER
    ) -> None:
        super().__init__()
        self.names = require_log_links(schema, "Tweedie")
        check_arguments(Tweedie.__init__, locals())
        self.power = power

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses_BT = tweedie_losses(prediction.logits_BT, prediction.labels_BT, self.power)
        return split_by_task(self.names, losses_BT)
