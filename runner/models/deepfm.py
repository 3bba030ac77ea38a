"""DeepFM (Guo et al. 2017, arXiv:1703.04247)."""

from __future__ import annotations

from collections.abc import Sequence

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.fm import pairwise_dot_sum
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class DeepFM(Recommender):
    """Factorization machine plus deep network on the same embeddings: y_FM + y_DNN, eq. 1.

    y_FM is the first-order term plus all dot products of pairs, eq. 2. With several tasks, all
    share y_FM and each has an output of the deep network.

    Args:
        schema: needs at least one sparse feature; dense ones, each with a vector of its own, are
            optional.
        embedding_dim: D, width of every table but the first-order ones.
        deep: hidden widths; a last linear layer of one logit a task follows.
        dropout: after each hidden layer. embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema with fewer than two features: there would be no pair.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        deep: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        self.embedding = TableLookup(schema, embedding_dim, linear=True, init=embedding_init)
        self.drop = Dropout(embedding_dropout)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema)
        self.deep = mlp(
            self.fields.width,
            [*deep, len(schema.tasks)],
            dropout=dropout,
            last_linear=True,
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = embeddings.pooled_BE.split(self.embedding.widths, dim=1)
        x_BND = self.fields(self.drop(pooled_BE), batch.dense_BD)
        fm_B1 = self.first_order(linear_BE, batch.dense_BD) + pairwise_dot_sum(x_BND)
        return Prediction.of(fm_B1 + self.deep(x_BND.flatten(1)), batch)
