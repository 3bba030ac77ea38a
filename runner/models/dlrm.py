"""DLRM (Naumov et al. 2019, arXiv:1906.00091, figure 1)."""

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
    SomeWidths,
    Width,
    Widths,
)
from runner.models.layers.dot import DotInteraction
from runner.models.layers.embedding import TableLookup
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.recommender import EmbeddingModel
from runner.models.requirements import require_two_vectors


class DLRM(EmbeddingModel):
    """Bottom MLP on the dense features, dot products of its output and all embeddings, top MLP.

    Args:
        schema: needs at least one sparse feature; without dense ones the bottom MLP is left out.
        embedding_dim: D, width of every table and of the bottom MLP's output.
        bottom: hidden widths; a last layer of width D follows.
        top: hidden widths; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer of the top MLP.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of both MLPs, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has no sparse feature, or only one feature in all.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        bottom: SomeWidths,
        top: Widths,
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        embedding_init: EmbeddingInit = None,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        init: Init = None,
    ) -> None:
        require_two_vectors(schema)
        super().__init__(
            TableLookup(schema, embedding_dim, init=embedding_init), dropout=embedding_dropout
        )
        self.embedding_dim = embedding_dim
        self.num_dense = len(schema.dense)
        num_vectors = len(schema.sparse) + bool(schema.dense)
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        if schema.dense:
            widths, before = [*bottom, embedding_dim], hidden.without_dropout()
            self.bottom = mlp(self.num_dense, widths, before, last="activation")
        self.interaction = DotInteraction(num_vectors)
        num_top = num_vectors * (num_vectors - 1) // 2 + (embedding_dim if schema.dense else 0)
        self.top = mlp(num_top, [*top, len(schema.tasks)], hidden, last="linear")
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        vectors_BE = self.embedding_drop(embeddings.pooled_BE)
        if self.num_dense:
            bottom_BD = self.bottom(batch.dense_BD, batch.weights_B)
            vectors_BE = torch.cat((bottom_BD, vectors_BE.to(bottom_BD.dtype)), dim=1)
        pairs_BP = self.interaction(torch.unflatten(vectors_BE, 1, (-1, self.embedding_dim)))
        if self.num_dense:
            pairs_BP = torch.cat((bottom_BD, pairs_BP), dim=1)
        return Prediction.of(self.top(pairs_BP, batch.weights_B), batch)
