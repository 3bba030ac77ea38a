"""xDeepFM (Lian et al. 2018, arXiv:1803.05170)."""

from __future__ import annotations

import torch
from torch import nn

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
    SomeWidths,
    Width,
    Widths,
)
from runner.models.layers.cin import CIN
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.recommender import EmbeddingModel


class XDeepFM(EmbeddingModel):
    """First-order term, compressed interaction network (CIN) and deep network, summed: eq. 9.

    Several tasks share the first-order term.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        cin: feature maps of each CIN layer. A layer costs D x fields x maps x maps per row.
        deep: hidden widths; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has fewer than two features, or if `cin` has no layer.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        cin: SomeWidths,
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
        num_tasks = len(schema.tasks)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema)
        self.cin = CIN(self.fields.num_fields, cin)
        self.cin_head = nn.Linear(self.cin.width, num_tasks, bias=False)  # the deep head has one
        deep = [*deep, num_tasks]
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.deep = mlp(self.fields.width, deep, hidden, last="linear")
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        shallow_BT = self.first_order(linear_BE, batch.dense_BD) + self.cin_head(self.cin(x_BND))
        deep_BT = self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(shallow_BT + deep_BT, batch)
