"""AutoInt (Song et al. 2019, arXiv:1810.11921): self-attention over fields."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.attention import InteractingLayer
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.models.layers.sizes import check_sizes


class AutoInt(Recommender):
    """Interacting layers on one vector a field, then a linear layer on all of them, eq. 9.

    With `deep` it is the paper's AutoInt+: a deep network's logit is added.

    Args:
        schema: needs at least two features, one of them sparse; dense ones, each with a vector of
            its own, are optional.
        embedding_dim: D, width of every table.
        num_layers: interacting layers. attention_dim: their width, of all heads together.
        num_heads: of each layer.
        deep: hidden widths of the deep network; empty: none.
        dropout: after each of its hidden layers. embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema with fewer than two features, or heads that do not divide.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        num_layers: int,
        attention_dim: int,
        num_heads: int,
        deep: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        check_sizes(num_layers=num_layers)
        num_tasks = len(schema.tasks)
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.drop = Dropout(embedding_dropout)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        widths = [embedding_dim, *[attention_dim] * num_layers]
        self.attention = nn.Sequential(
            *(InteractingLayer(before, after, num_heads) for before, after in pairwise(widths))
        )
        self.head = nn.Linear(self.fields.num_fields * widths[-1], num_tasks)
        self.deep = None
        if deep:
            self.deep = mlp(
                self.fields.width,
                [*deep, num_tasks],
                dropout=dropout,
                last_linear=True,
            )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.drop(embeddings.pooled_BE), batch.dense_BD)
        logits_BT = self.head(self.attention(x_BND).flatten(1))
        if self.deep is not None:
            logits_BT = logits_BT + self.deep(x_BND.flatten(1))
        return Prediction.of(logits_BT, batch)
