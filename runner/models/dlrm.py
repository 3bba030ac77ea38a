"""DLRM (Naumov et al. 2019, arXiv:1906.00091, figure 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dot import DotInteraction
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class DLRM(Recommender):
    """Bottom MLP on the numbers, dot products of it with all embeddings, top MLP.

    Args:
        schema: needs at least one sparse feature; without dense ones the bottom MLP is left out.
        embedding_dim: D, width of every table and of the bottom MLP's output.
        bottom: hidden widths; a last layer of width D follows.
        top: hidden widths; a last linear layer of one logit a task follows.
        dropout: after each hidden layer of the top MLP.
        embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without sparse features, or with nothing to interact with.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        bottom: Sequence[int],
        top: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.embedding_drop = Dropout(embedding_dropout)
        self.num_dense = len(schema.dense)
        num_vectors = len(schema.sparse) + bool(schema.dense)
        if num_vectors < 2:
            raise ValueError(
                "needs a dense feature or a second sparse one to interact with; the dataset has "
                f"{schema.sparse[0].name} only"
            )
        if schema.dense:
            self.bottom = mlp(self.num_dense, [*bottom, embedding_dim])
        self.interaction = DotInteraction(num_vectors)
        num_top = num_vectors * (num_vectors - 1) // 2 + (embedding_dim if schema.dense else 0)
        self.top = mlp(num_top, [*top, len(schema.tasks)], dropout=dropout, last_linear=True)

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE = self.embedding_drop(embeddings.pooled_BE)
        if not self.num_dense:
            pairs_BP = self.interaction(pooled_BE.unflatten(1, (-1, self.embedding_dim)))
            return Prediction.of(self.top(pairs_BP), batch)
        bottom_BD = self.bottom(batch.dense_BD)
        vectors_BE = torch.cat((bottom_BD, pooled_BE.to(bottom_BD.dtype)), dim=1)
        pairs_BP = self.interaction(vectors_BE.unflatten(1, (-1, self.embedding_dim)))
        return Prediction.of(self.top(torch.cat((bottom_BD, pairs_BP), dim=1)), batch)
