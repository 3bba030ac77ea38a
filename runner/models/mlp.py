"""Embedding and MLP: the baseline of the other models.

It is the base model of Zhou et al. 2018 (arXiv:1706.06978, section 4.2) and, for several tasks, the
shared bottom of Caruana 1997 ("Multitask learning", Machine Learning 28).
"""

from __future__ import annotations

from typing import Any

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import EmbeddingInit, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.interest import mean_pool
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.sequences import SequenceLookup
from runner.models.table_widths import TableWidths


class MLP(DeepModel):
    """One MLP on all embeddings, the mean of each sequence, and the dense features.

    Several tasks share all hidden layers, and each has a logit of the last one.

    Args:
        schema: needs at least one sparse feature; dense ones and sequences are optional.
        embedding_dim: D, width of every table, or widths by table.
        deep: hidden widths; a last linear layer with one logit per task follows.
        embedding_init: see `TableLookup`.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, or sequences and several widths.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: TableWidths,
        deep: Widths,
        embedding_init: EmbeddingInit = None,
        **shared: Any,
    ) -> None:
        embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        if schema.sequences:
            if not isinstance(embedding_dim, int):
                raise ValueError("embedding_dim: sequences need one width for all tables")
            embedding = SequenceLookup(
                schema,
                embedding_dim,
                features=schema.sparse,
                sequences=schema.sequences,
                init=embedding_init,
            )
        super().__init__(schema, embedding_dim, embedding, **shared)
        self.sequences = schema.sequences
        width, deep = concat_width(schema, embedding_dim), [*deep, len(schema.tasks)]
        width += len(schema.sequences) * self.embedding.dim
        self.deep = mlp(width, deep, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE = embeddings.pooled_BE
        if self.sequences:
            means = [
                mean_pool(x_BLD, embeddings.per_row[f"{s.name}:length"])
                for s, x_BLD in zip(self.sequences, embeddings.sequences_BLD, strict=True)
            ]
            pooled_BE = torch.cat((pooled_BE, *means), dim=1)
        x_B = concat_features(self.embedding_drop(pooled_BE), batch.dense_BD)
        return Prediction.of(self.deep(x_B, batch.weights_B), batch)
