"""xDeepFM (Lian et al. 2018, arXiv:1803.05170)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.cin import CIN
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class XDeepFM(Recommender):
    """First-order term, compressed interaction network and deep network, added up: eq. 9.

    With several tasks, all share the first-order term.

    Args:
        schema: needs at least two features, one of them sparse; dense ones, each with a vector of
            its own, are optional.
        embedding_dim: D, width of every table but the first-order ones.
        cin: feature maps of each CIN layer. Its cost is D x fields x maps x maps a row and layer.
        deep: hidden widths; a last linear layer of one logit a task follows.
        dropout: after each hidden layer. embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema with fewer than two features.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        cin: Sequence[int],
        deep: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        num_tasks = len(schema.tasks)
        self.embedding = TableLookup(schema, embedding_dim, linear=True, init=embedding_init)
        self.drop = Dropout(embedding_dropout)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema)
        self.cin = CIN(self.fields.num_fields, cin)
        self.cin_head = nn.Linear(self.cin.width, num_tasks, bias=False)  # the deep head has one
        self.deep = mlp(
            self.fields.width,
            [*deep, num_tasks],
            dropout=dropout,
            last_linear=True,
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = embeddings.pooled_BE.split(self.embedding.widths, dim=1)
        x_BND = self.fields(self.drop(pooled_BE), batch.dense_BD)
        shallow_BT = self.first_order(linear_BE, batch.dense_BD) + self.cin_head(self.cin(x_BND))
        return Prediction.of(shallow_BT + self.deep(x_BND.flatten(1)), batch)
