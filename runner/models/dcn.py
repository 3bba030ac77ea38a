"""DCN-V2 (Wang et al. 2021, arXiv:2008.13535): explicit crosses beside or before a deep network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.cross import Cross, MixtureCross
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class DCN(Recommender):
    """Cross network on embeddings and numbers, with a deep network, figure 1.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table.
        num_layers: of the cross network, so that crosses have up to this many plus one factors.
        rank: None for one full matrix a layer (eq. 1); a number for a mixture of `num_experts`
            low-rank matrices with gates (eq. 3 and 4).
        structure: parallel (both on the input, outputs side by side) or stacked (deep on crosses).
        deep: hidden widths of the deep network.
        dropout: after each of its hidden layers. embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without sparse features, or a structure it does not know.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        num_layers: int,
        rank: int | None,
        num_experts: int,
        structure: Literal["parallel", "stacked"],
        deep: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        if structure not in ("parallel", "stacked"):
            raise ValueError(f"structure={structure}: parallel or stacked")
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        width = concat_width(schema, embedding_dim)
        self.cross: nn.Module
        if rank is None:
            self.cross = Cross(width, num_layers)
        else:
            self.cross = MixtureCross(width, num_layers, rank=rank, num_experts=num_experts)
        self.drop = Dropout(embedding_dropout)
        self.deep = mlp(width, deep, dropout=dropout)
        num_deep = deep[-1] if deep else width
        self.stacked = structure == "stacked"
        self.head = nn.Linear(num_deep + (0 if self.stacked else width), len(schema.tasks))

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x0_BW = concat_features(self.drop(embeddings.pooled_BE), batch.dense_BD)
        crossed_BW = self.cross(x0_BW)
        if self.stacked:
            return Prediction.of(self.head(self.deep(crossed_BW)), batch)
        both = torch.cat((crossed_BW, self.deep(x0_BW)), dim=1)
        return Prediction.of(self.head(both), batch)
