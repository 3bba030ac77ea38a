"""DLRM (Naumov et al. 2019, arXiv:1906.00091, figure 1)."""

from __future__ import annotations

from typing import Any

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import SomeWidths, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.dot import DotInteraction
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.requirements import require_two_vectors


class DLRM(DeepModel):
    """Bottom MLP on the dense features, dot products of its output and all embeddings, top MLP.

    Args:
        schema: needs at least one sparse feature; without dense ones the bottom MLP is left out.
        embedding_dim: D, width of every table and of the bottom MLP's output.
        bottom: hidden widths; a last layer of width D follows.
        top: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `DeepModel`; only the top MLP has dropout.

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
        **shared: Any,
    ) -> None:
        require_two_vectors(schema)
        super().__init__(schema, embedding_dim, **shared)
        self.embedding_dim = embedding_dim
        self.num_dense = len(schema.dense)
        num_vectors = len(schema.sparse) + bool(schema.dense)
        if schema.dense:
            widths, before = [*bottom, embedding_dim], self.hidden.without_dropout()
            self.bottom = mlp(self.num_dense, widths, before, last="activation")
        self.interaction = DotInteraction(num_vectors)
        num_top = num_vectors * (num_vectors - 1) // 2 + (embedding_dim if schema.dense else 0)
        self.top = mlp(num_top, [*top, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        vectors_BE = self.embedding_drop(embeddings.pooled_BE)
        if self.num_dense:
            bottom_BD = self.bottom(batch.dense_BD, batch.weights_B)
            vectors_BE = torch.cat((bottom_BD, vectors_BE.to(bottom_BD.dtype)), dim=1)
        pairs_BP = self.interaction(torch.unflatten(vectors_BE, 1, (-1, self.embedding_dim)))
        if self.num_dense:
            pairs_BP = torch.cat((bottom_BD, pairs_BP), dim=1)
        return Prediction.of(self.top(pairs_BP, batch.weights_B), batch)
