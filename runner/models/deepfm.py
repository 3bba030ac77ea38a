"""DeepFM (Guo et al. 2017, arXiv:1703.04247)."""

from __future__ import annotations

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import (
    Activation,
    DropoutRate,
    EmbeddingInit,
    Init,
    LayerDropout,
    Norm,
    NormPlace,
    NormScope,
    Width,
    Widths,
)
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.fm import pairwise_dot_sum
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.recommender import EmbeddingModel


class DeepFM(EmbeddingModel):
    """Factorization machine plus deep network on the same embeddings: y_FM + y_DNN, eq. 1.

    y_FM is the first-order term plus the dot products of all pairs, eq. 2. Several tasks share
    y_FM, and each of them has an output of the deep network.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        deep: hidden widths; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has fewer than two features, since there would be no pair.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        deep: Widths,
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        embedding_init: EmbeddingInit = None,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        init: Init = None,
    ) -> None:
        super().__init__(
            TableLookup(schema, embedding_dim, linear=True, init=embedding_init),
            dropout=embedding_dropout,
        )
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema)
        deep = [*deep, len(schema.tasks)]
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.deep = mlp(self.fields.width, deep, hidden, last="linear")
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        fm_B1 = self.first_order(linear_BE, batch.dense_BD) + pairwise_dot_sum(x_BND)
        deep_BT = self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(fm_B1 + deep_BT, batch)
