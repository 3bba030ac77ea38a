"""FiBiNET (Huang et al. 2019, arXiv:1905.09433): weights of fields and bilinear pairs."""

from __future__ import annotations

from typing import Literal

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import (
    Activation,
    Count,
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
from runner.models.layers.bilinear import BilinearPairs, SqueezeExcitation
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.recommender import EmbeddingModel


class FiBiNET(EmbeddingModel):
    """First-order term plus a deep network on two sets of bilinear pairs, section 3.

    One set is of the embeddings, the other of the embeddings times weights of fields that the row
    makes (SENET); each has matrices of its own. Several tasks share the first-order term.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        bilinear: which pairs share a matrix: `all`, those of `each` first field, or none
            (`interaction`). The deep network reads D numbers for each pair of each set.
        reduction: number of fields divided by the width of SENET's hidden layer.
        deep: hidden widths; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has fewer than two features, or if `bilinear` is unknown.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        bilinear: Literal["all", "each", "interaction"],
        reduction: Count,
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
        num_fields = self.fields.num_fields
        self.first_order = FirstOrder(schema)
        self.senet = SqueezeExcitation(num_fields, reduction)
        self.pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        self.senet_pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        width = num_fields * (num_fields - 1) * embedding_dim
        self.deep = mlp(width, [*deep, len(schema.tasks)], hidden, last="linear")
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        both = [*self.pairs(x_BND), *self.senet_pairs(self.senet(x_BND))]
        deep_BT = self.deep(torch.cat(both, dim=1), batch.weights_B)
        return Prediction.of(self.first_order(linear_BE, batch.dense_BD) + deep_BT, batch)
