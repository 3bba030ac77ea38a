"""FwFM (Pan et al. 2018, arXiv:1806.03514): a factorization machine with weights of field pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import DropoutRate, EmbeddingInit, Init, LinearWeights, Width
from runner.models.layers.dot import DotInteraction
from runner.models.layers.embedding import TableLookup, count_first_order
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import init_linear_layers
from runner.models.layers.recommender import EmbeddingModel


class FwFM(EmbeddingModel):
    """w_0 + first order + the sum over pairs i < j of r_ij <v_i, v_j>, with r of fields: eq. 4.

    Each task has its own w_0 and r.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        first_order: field for the sum of <v_i, w_i> with a vector w_i for each field and task
            (FwFM_FiLV in section 3.3), or id for one weight per id and dense feature (FwFM_LW).
        linear_weights: those weights of several tasks, see `LinearDeepModel`.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        init: see `init_linear_layers`; the r are a linear layer.

    Raises:
        ValueError: if the schema has fewer than two features, or if `first_order` is unknown.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        first_order: Literal["field", "id"],
        linear_weights: LinearWeights = "shared",
        embedding_dropout: DropoutRate = 0.0,
        embedding_init: EmbeddingInit = None,
        init: Init = None,
    ) -> None:
        check_arguments(FwFM.__init__, locals())
        by_id, num_tasks = first_order == "id", len(schema.tasks)
        num_sums = count_first_order(schema, linear_weights) if by_id else 0
        super().__init__(
            TableLookup(schema, embedding_dim, linear=num_sums, init=embedding_init),
            dropout=embedding_dropout,
        )
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.dots = DotInteraction(self.fields.num_fields)
        self.pairs = nn.Linear(len(self.dots.lower_P), num_tasks)
        self.by_id = FirstOrder(schema, num_sums) if by_id else None
        self.by_field = None if by_id else nn.Linear(self.fields.width, num_tasks, bias=False)
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, *linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        logits_BT = self.pairs(self.dots(x_BND))
        if self.by_field is not None:
            logits_BT = logits_BT + self.by_field(x_BND.flatten(1))
        if self.by_id is not None:
            logits_BT = logits_BT + self.by_id(*linear_BE, batch.dense_BD)
        return Prediction.of(logits_BT, batch)
