"""DeepFM (Guo et al. 2017, arXiv:1703.04247)."""

from __future__ import annotations

from typing import Any

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import Width, Widths
from runner.models.layers.deep_model import LinearDeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.fm import PairTerm
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import init_linear_layers, mlp


class DeepFM(LinearDeepModel):
    """Factorization machine plus deep network on the same embeddings: y_FM + y_DNN, eq. 1.

    y_FM is the first-order term plus the dot products of all pairs, eq. 2. Several tasks share the
    dot products, but for classes (`PairTerm`), and each has an output of the deep network.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        deep: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `LinearDeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, since there would be no pair.
    """

    def __init__(
        self, schema: Schema, *, embedding_dim: Width, deep: Widths, **shared: Any
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema, self.embedding.linear)
        self.pairs = PairTerm(schema, embedding_dim)
        deep = [*deep, len(schema.tasks)]
        self.deep = mlp(self.fields.width, deep, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        fm_BT = self.first_order(linear_BE, batch.dense_BD) + self.pairs(x_BND)
        deep_BT = self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(fm_BT + deep_BT, batch)
