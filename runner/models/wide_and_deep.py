"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792)."""

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
    Widths,
)
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.recommender import EmbeddingModel
from runner.models.table_widths import TableWidths


class WideAndDeep(EmbeddingModel):
    """A linear model plus a deep network, both on ids and dense features, eq. 3.

    The paper's crossed columns belong to the dataset, not to the model: a column that holds the
    crossed id is wide like any other. Several tasks share the wide part.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table, or widths by table but the wide ones.
        deep: hidden widths; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has no sparse feature.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: TableWidths,
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
        self.wide = FirstOrder(schema)
        width, deep = concat_width(schema, embedding_dim), [*deep, len(schema.tasks)]
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.deep = mlp(width, deep, hidden, last="linear")
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        wide_B1 = self.wide(linear_BE, batch.dense_BD)
        x_B = concat_features(self.embedding_drop(pooled_BE), batch.dense_BD)
        deep_BT = self.deep(x_B, batch.weights_B)
        return Prediction.of(wide_B1 + deep_BT, batch)
