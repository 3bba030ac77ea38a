"""The base class of models with hidden layers, for the arguments that all of them take."""

from __future__ import annotations

from runner.batch import Schema
from runner.models.argument_types import (
    Activation,
    DropoutRate,
    EmbeddingInit,
    Init,
    LayerDropout,
    Norm,
    NormPlace,
    NormScope,
)
from runner.models.layers.embedding import TableLookup
from runner.models.layers.mlp import HiddenLayers
from runner.models.layers.recommender import EmbeddingModel
from runner.models.table_widths import TableWidths


class DeepModel(EmbeddingModel):
    """A model with hidden layers, which builds them as `hidden` says.

    A model ends its constructor with `init_linear_layers(self, self.linear_init)`.

    Args:
        schema: of the data.
        embedding_dim: width of every table, or widths by table.
        lookup: declares the tables; None for a `TableLookup` of the sparse features.
        embedding_init: of the tables, see `TableLookup`.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the embeddings.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.
    """

    has_first_order = False  # whether a first-order table stands beside each table

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
        lookup = lookup or TableLookup(
            schema, embedding_dim, linear=self.has_first_order, init=embedding_init
        )
        super().__init__(lookup, dropout=embedding_dropout)
        self.hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.linear_init = init
