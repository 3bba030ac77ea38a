"""The loss of models that also learn to predict what they read.

B batch, T tasks.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from runner.batch import Prediction, Schema
from runner.config_key import Key
from runner.config_value import check_arguments
from runner.models.losses.pointwise import BCE


class AuxiliaryBCE(BCE):
    """Binary cross-entropy, plus the auxiliary loss of the model, L_target + w L_aux.

    The loss of DIEN (Zhou et al. 2019, arXiv:1809.03672). In evaluations, where nothing is drawn,
    the second is left out.

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
