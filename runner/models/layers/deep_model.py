"""The base class of models with hidden layers, for the arguments that all of them take."""

from __future__ import annotations

from runner.models.argument_types import (
    Activation,
    DropoutRate,
    Init,
    LayerDropout,
    Norm,
    NormPlace,
    NormScope,
)
from runner.models.layers.embedding import TableLookup
from runner.models.layers.mlp import HiddenLayers
from runner.models.layers.recommender import EmbeddingModel


class DeepModel(EmbeddingModel):
    """A model with hidden layers, which builds them as `hidden` says.

    A model ends its constructor with `init_linear_layers(self, self.linear_init)`.

    Args:
        embedding: the look-up, which declares the tables.
        dropout: dropout after each hidden layer.
        embedding_dropout: dropout of the embeddings.
        norm, norm_place, norm_scope, activation: of the hidden layers, see `HiddenLayers`.
        init: see `init_linear_layers`.
    """

    def __init__(
        self,
        embedding: TableLookup,
        /,
        *,
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        init: Init = None,
    ) -> None:
        super().__init__(embedding, dropout=embedding_dropout)
        self.hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.linear_init = init
