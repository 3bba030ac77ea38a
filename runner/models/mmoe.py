"""MMoE, multi-gate mixture of experts for several tasks.

Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts", KDD.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import Count, SomeWidths, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.experts import Experts, Mixture
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.table_widths import TableWidths


class MMoE(DeepModel):
    """Shared experts, mixed by a gate for each task, eq. 6 to 8, and a tower per task.

    Args:
        schema: needs at least one sparse feature; dense ones are optional. With one task the model
            is a mixture of experts.
        embedding_dim: D, width of every table, or widths by table.
        num_experts: number of experts, which all tasks share.
        experts: hidden widths of each expert.
        tower: hidden widths of each task's tower; a last linear layer with one logit follows.
        shared: further arguments of `DeepModel`; only the towers have dropout.

    Raises:
        ValueError: if the schema has no sparse feature, or if there is no expert or no layer in it.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: TableWidths,
        num_experts: Count,
        experts: SomeWidths,
        tower: Widths,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        width = concat_width(schema, embedding_dim)
        self.experts = Experts(num_experts, width, experts, self.hidden)
        self.gates = Mixture(width, num_experts, num_gates=len(schema.tasks))
        self.towers = nn.ModuleList(
            mlp(self.experts.width, [*tower, 1], self.hidden, last="linear") for _ in schema.tasks
        )
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_B = concat_features(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        mixed_BTW = self.gates(x_B, self.experts(x_B, batch.weights_B))
        logits = [
            tower(x, batch.weights_B)
            for tower, x in zip(self.towers, mixed_BTW.unbind(1), strict=True)
        ]
        return Prediction.of(torch.cat(logits, dim=1), batch)
