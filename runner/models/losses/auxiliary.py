"""Losses of models with a second target, or whose blocks teach each other.

B batch, T tasks, K blocks.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from runner.batch import Prediction, Schema
from runner.config_key import Key
from runner.config_value import check_arguments
from runner.models.losses.pointwise import BCE
from runner.models.losses.protocol import binary_losses, split_by_task
from runner.models.requirements import require_task_kind


class AuxiliaryBCE(BCE):
    """Binary cross-entropy, plus the auxiliary loss of the model, L_target + w L_aux.

    The loss of DIEN (Zhou et al. 2019, arXiv:1809.03672). In evaluations, where nothing is drawn,
    the second term is left out.

    Args:
        schema: needs binary tasks.
        weight: w, from 0.

    Raises:
        ValueError: if a task is not binary, or if the weight is negative.
    """

    requires = "auxiliary"

    def __init__(
        self, schema: Schema, *, weight: Annotated[float, Key("of the auxiliary loss", ge=0)] = 1.0
    ) -> None:
        super().__init__(schema)
        check_arguments(AuxiliaryBCE.__init__, locals())
        self.weight = weight

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        losses = super().forward(prediction)
        if "auxiliary_B" in prediction.aux:
            losses["auxiliary"] = self.weight * prediction.aux["auxiliary_B"]
        return losses


class SelfDistillation(nn.Module):
    """Binary cross-entropy, plus that of each block's logit against the model's own probability.

    FinalNet (Zhu et al. 2023, doi:10.1145/3539618.3591988): BCE(x, y) + w sum_k BCE(x_k, s(x)),
    where s(x) is a constant and x the mean of the blocks' logits x_k.

    Args:
        schema: needs binary tasks.
        weight: w, from 0; the paper's is 1.

    Raises:
        ValueError: if a task is not binary, or if the weight is negative.
    """

    requires = "blocks"

    def __init__(
        self, schema: Schema, *, weight: Annotated[float, Key("of the blocks", ge=0)] = 1.0
    ) -> None:
        super().__init__()
        self.names = require_task_kind(schema, "binary", "SelfDistillation")
        check_arguments(SelfDistillation.__init__, locals())
        self.weight = weight

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        logits_BT, blocks_KBT = prediction.logits_BT, prediction.aux["blocks_KBT"]
        losses_BT = binary_losses(logits_BT, prediction.labels_BT)
        own_BT = logits_BT.detach().sigmoid()
        distilled_KBT = binary_losses(blocks_KBT, own_BT.expand_as(blocks_KBT))
        return split_by_task(self.names, losses_BT + self.weight * distilled_KBT.sum(0))
