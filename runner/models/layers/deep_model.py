"""The base class of models with hidden layers, for the arguments that they have in common."""

from __future__ import annotations

from typing import Any

from runner.batch import Schema
from runner.models.argument_types import (
    Activation,
    DropoutRate,
    EmbeddingInit,
    Init,
    LayerDropout,
    LinearWeights,
    Norm,
    NormPlace,
    NormScope,
)
from runner.models.layers.embedding import TableLookup, count_first_order
from runner.models.layers.mlp import HiddenLayers
from runner.models.layers.recommender import EmbeddingModel
from runner.models.table_widths import TableWidths


class DeepModel(EmbeddingModel):
    """A model with hidden layers, which are built as described by `hidden`.

    A model ends its constructor with `init_linear_layers(self, self.linear_init)`.

    Args:
        embedding_dim: width of every table, or widths by table.
        lookup: declares the tables; None for a `TableLookup` of the sparse features.
        embedding_init: of the tables, see `TableLookup`.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the embeddings.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.
    """

    def __init__(
        self,
        schema: Schema,
        embedding_dim: TableWidths,
        lookup: TableLookup | None = None,
        /,
        *,
        embedding_init: EmbeddingInit = None,
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        init: Init = None,
    ) -> None:
        lookup = lookup or TableLookup(schema, embedding_dim, init=embedding_init)
        super().__init__(lookup, dropout=embedding_dropout)
        self.hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.linear_init = init


class LinearDeepModel(DeepModel):
    """A model with hidden layers and a first-order term with separate tables.

    Args:
        embedding_dim: width of every table, or widths by table, but the first-order ones.
        linear_weights: of several tasks: own, or one shared set; None is own. Runs
            without the setting are from a version in which they shared one.
        embedding_init: of the tables, see `TableLookup`.
        shared: further arguments of `DeepModel`.
    """

    def __init__(
        self,
        schema: Schema,
        embedding_dim: TableWidths,
        /,
        *,
        linear_weights: LinearWeights = "shared",
        embedding_init: EmbeddingInit = None,
        **shared: Any,
    ) -> None:
        num_sums = count_first_order(schema, linear_weights)
        lookup = TableLookup(schema, embedding_dim, linear=num_sums, init=embedding_init)
        super().__init__(schema, embedding_dim, lookup, **shared)
