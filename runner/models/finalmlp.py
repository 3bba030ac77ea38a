"""FinalMLP (Mao et al. 2023, arXiv:2304.00902): two gated MLPs and a bilinear fusion."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.errors import nearest_hint
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.models.layers.streams import BilinearFusion, FeatureGate


class FinalMLP(Recommender):
    """Two MLPs, each with a view of the features of its own, fused by a bilinear form.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table.
        streams: hidden widths of the two MLPs; the last ones are multiples of `num_heads`.
        contexts: for each stream, the sparse features whose embeddings make its gates (section
            "stream-specific feature selection"), such as the user's for one and the item's for the
            other; empty: learnt gates, the same for every row.
        gate: hidden widths of the gates' MLPs.
        num_heads: of the fusion.
        dropout: after each hidden layer of the streams. embedding_dropout: of their input.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without sparse features, a context feature that it lacks, or
        widths that the heads do not divide.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        streams: Sequence[Sequence[int]],
        contexts: Sequence[Sequence[str]],
        gate: Sequence[int],
        num_heads: int,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        for key, value in (("streams", streams), ("contexts", contexts)):
            if len(value) != 2:
                raise ValueError(f"{key}={value}: a list for each of the two streams")
        if not all(streams):
            raise ValueError(f"streams={list(streams)}: at least one layer in each")
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.columns = [context_columns(schema, names, embedding_dim) for names in contexts]
        width = concat_width(schema, embedding_dim)
        self.gates = nn.ModuleList(
            FeatureGate(width, embedding_dim * len(columns), gate) for columns in self.columns
        )
        self.streams = nn.ModuleList(
            mlp(width, widths, dropout=dropout, input_dropout=embedding_dropout)
            for widths in streams
        )
        self.fusion = BilinearFusion(streams[0][-1], streams[1][-1], len(schema.tasks), num_heads)

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BW = concat_features(embeddings.pooled_BE, batch.dense_BD)
        o1_BS, o2_BS = (
            stream(gate(x_BW, select_context(embeddings.pooled_BE, columns)))
            for stream, gate, columns in zip(self.streams, self.gates, self.columns)
        )
        return Prediction.of(self.fusion(o1_BS, o2_BS), batch)


def context_columns(schema: Schema, names: Sequence[str], dim: int) -> list[slice]:
    """Columns of the pooled embeddings of some features. Raises: ValueError for an unknown one."""
    known = [feature.name for feature in schema.sparse]
    for name in names:
        if name not in known:
            raise ValueError(
                f"contexts: the dataset has no sparse feature {name!r}{nearest_hint(name, known)}"
            )
    return [slice(known.index(n) * dim, (known.index(n) + 1) * dim) for n in names]


def select_context(pooled_BE: Tensor, columns: Sequence[slice]) -> Tensor | None:
    parts = [pooled_BE[:, c] for c in columns]
    return torch.cat(parts, dim=1) if len(parts) > 1 else next(iter(parts), None)
