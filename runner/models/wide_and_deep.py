"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792)."""

from __future__ import annotations

from collections.abc import Sequence

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class WideAndDeep(Recommender):
    """A linear model of ids and numbers plus a deep network on embeddings and numbers, eq. 3.

    The paper's crossed columns are features of the data set, not of the model: a column that holds
    the crossed id is wide as any other. With several tasks, all share the wide part.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table but the wide ones.
        deep: hidden widths; a last linear layer of one logit a task follows.
        dropout: after each hidden layer. embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError if the schema has no sparse feature.
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
        self.wide = FirstOrder(schema)
        self.deep = mlp(
            concat_width(schema, embedding_dim),
            [*deep, len(schema.tasks)],
            dropout=dropout,
            last_linear=True,
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = embeddings.pooled_BE.split(self.embedding.widths, dim=1)
        wide_B1 = self.wide(linear_BE, batch.dense_BD)
        deep_BT = self.deep(concat_features(self.drop(pooled_BE), batch.dense_BD))
        return Prediction.of(wide_B1 + deep_BT, batch)
