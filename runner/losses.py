"""Losses: a prediction in, a named loss per row out. The step weighs, sums and averages them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Prediction, Schema


class Loss(Protocol):
    """Returns name -> [B] float32; the loss of a row is the sum over names."""

    def __call__(self, prediction: Prediction) -> Mapping[str, Tensor]: ...


class BCE(nn.Module):
    """Binary cross-entropy of each task's logit, in float32 also under autocast.

    Raises: ValueError if a task is not binary.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        for task in schema.tasks:
            if task.kind != "binary":
                raise ValueError(f"loss BCE needs binary tasks; {task.name!r} is {task.kind}")
        self.names = [task.name for task in schema.tasks]

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses_BT = functional.binary_cross_entropy_with_logits(
            prediction.logits_BT, prediction.labels_BT, reduction="none"
        )
        return dict(zip(self.names, losses_BT.unbind(1)))
