"""GDCN (Wang et al. 2023, arXiv:2311.04635): a cross network with gated crosses."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Count, Width, Widths
from runner.models.layers.cross import GatedCross
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import init_linear_layers, mlp


class GDCN(DeepModel):
    """Gated cross network on embeddings and dense features, with a deep network.

    The paper's field-level dimension optimisation, which chooses the widths of tables, is left out.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table.
        num_layers: layers of the cross network. Crosses have up to `num_layers` + 1 factors.
        structure: parallel (GDCN-P: both networks on the input, their outputs concatenated) or
            stacked (GDCN-S: the deep network on the crosses).
        deep: hidden widths of the deep network.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, or if a setting is out of range.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_layers: Count,
        structure: Literal["parallel", "stacked"],
        deep: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(GDCN.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        width = concat_width(schema, embedding_dim)
        self.cross = GatedCross(width, num_layers)
        self.deep = mlp(width, deep, self.hidden)
        num_deep = deep[-1] if deep else width
        self.stacked = structure == "stacked"
        self.head = nn.Linear(num_deep + (0 if self.stacked else width), len(schema.tasks))
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x0_BW = concat_features(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        crossed_BW = self.cross(x0_BW)
        if self.stacked:
            return Prediction.of(self.head(self.deep(crossed_BW, batch.weights_B)), batch)
        both = torch.cat((crossed_BW, self.deep(x0_BW, batch.weights_B)), dim=1)
        return Prediction.of(self.head(both), batch)
