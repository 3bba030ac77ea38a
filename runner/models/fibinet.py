"""FiBiNET (Huang et al. 2019, arXiv:1905.09433): weights of fields and bilinear pairs."""

from __future__ import annotations

from typing import Any

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import BilinearKind, Count, Width, Widths
from runner.models.layers.bilinear import BilinearPairs, SqueezeExcitation
from runner.models.layers.deep_model import LinearDeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import init_linear_layers, mlp


class FiBiNET(LinearDeepModel):
    """First-order term plus a deep network on two sets of bilinear pairs, section 3.

    One set is of the embeddings, the other of the embeddings times weights of fields that the row
    makes (SENET); each has matrices of its own.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        bilinear: which pairs share a matrix: `all`, those of `each` first field, or none
            (`interaction`). The deep network reads D numbers for each pair of each set.
        reduction: number of fields divided by the width of SENET's hidden layer.
        deep: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `LinearDeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, or if `bilinear` is unknown.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        bilinear: BilinearKind,
        reduction: Count,
        deep: Widths,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        num_fields = self.fields.num_fields
        self.first_order = FirstOrder(schema, self.embedding.linear)
        self.senet = SqueezeExcitation(num_fields, reduction)
        self.pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        self.senet_pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        width = num_fields * (num_fields - 1) * embedding_dim
        self.deep = mlp(width, [*deep, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        both = [*self.pairs(x_BND), *self.senet_pairs(self.senet(x_BND))]
        deep_BT = self.deep(torch.cat(both, dim=1), batch.weights_B)
        return Prediction.of(self.first_order(linear_BE, batch.dense_BD) + deep_BT, batch)
