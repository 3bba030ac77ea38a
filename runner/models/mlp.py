"""Embedding and MLP: what other models are held against (the base model of Zhou et al. 2018,
arXiv:1706.06978, section 4.2; for several tasks the shared bottom of Caruana 1997, "Multitask
learning", Machine Learning 28)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features
from runner.models.layers.interest import mean_pool
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup


class MLP(Recommender):
    """One MLP on all embeddings, the mean of each sequence, and the numbers.

    With several tasks all hidden layers are shared, and each has a logit of the last one.

    Args:
        schema: needs at least one sparse feature; dense ones and sequences are optional.
        embedding_dim: D, width of every table.
        deep: hidden widths; a last linear layer of one logit a task follows.
        dropout: after each hidden layer. embedding_dropout: of all embeddings.
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
        self.sequences = schema.sequences
        self.embedding: TableLookup
        if self.sequences and schema.sparse:
            self.embedding = SequenceLookup(
                schema,
                embedding_dim,
                features=schema.sparse,
                sequences=schema.sequences,
                init=embedding_init,
            )
        else:
            self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.drop = Dropout(embedding_dropout)
        num_vectors = len(schema.sparse) + len(schema.sequences)
        self.deep = mlp(
            num_vectors * embedding_dim + len(schema.dense),
            [*deep, len(schema.tasks)],
            dropout=dropout,
            last_linear=True,
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE = embeddings.pooled_BE
        if self.sequences:
            means = [
                mean_pool(x_BLD, embeddings.per_row[f"{s.name}:length"])
                for s, x_BLD in zip(self.sequences, embeddings.sequences_BLD, strict=True)
            ]
            pooled_BE = torch.cat((pooled_BE, *means), dim=1)
        x_B = concat_features(self.drop(pooled_BE), batch.dense_BD)
        return Prediction.of(self.deep(x_B), batch)
