"""FinalMLP (Mao et al. 2023, arXiv:2304.00902): two gated MLPs and a bilinear fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_key import check_arguments
from runner.errors import nearest_hint
from runner.models.argument_types import Count, DropoutRate, TwoContexts, TwoStreams, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.streams import BilinearFusion, FeatureGate


class FinalMLP(DeepModel):
    """Two MLPs, each with its own gated view of the features, fused by a bilinear form.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table.
        streams: hidden widths of the two MLPs. `num_heads` must divide the last width of each.
        contexts: for each stream, the sparse features whose embeddings make its gates (section
            "stream-specific feature selection"), such as those of the user for one stream and
            those of the item for the other. With an empty list, the gates are parameters, the same
            for every row.
        gate: hidden widths of the gates' MLPs.
        num_heads: heads of the fusion.
        embedding_dropout: dropout of the streams' input.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature or lacks one that makes gates, if there are
            not two streams with layers, or if the heads do not divide their last widths.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        streams: TwoStreams,
        contexts: TwoContexts,
        gate: Widths,
        num_heads: Count,
        embedding_dropout: DropoutRate = 0.0,
        **shared: Any,
    ) -> None:
        check_arguments(FinalMLP.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        self.columns = [context_columns(schema, names, embedding_dim) for names in contexts]
        width = concat_width(schema, embedding_dim)
        self.gates = nn.ModuleList(
            FeatureGate(width, embedding_dim * len(columns), gate) for columns in self.columns
        )
        self.streams = nn.ModuleList(
            mlp(width, widths, self.hidden, input_dropout=embedding_dropout) for widths in streams
        )
        self.fusion = BilinearFusion(streams[0][-1], streams[1][-1], len(schema.tasks), num_heads)
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BW = concat_features(embeddings.pooled_BE, batch.dense_BD)
        o1_BS, o2_BS = (
            stream(gate(x_BW, select_context(embeddings.pooled_BE, columns)), batch.weights_B)
            for stream, gate, columns in zip(self.streams, self.gates, self.columns)
        )
        return Prediction.of(self.fusion(o1_BS, o2_BS), batch)


def context_columns(schema: Schema, names: Sequence[str], dim: int) -> list[slice]:
    """Return the columns of some features in the pooled embeddings.

    Raises:
        ValueError: if the schema lacks one of the features.
    """
    known = [feature.name for feature in schema.sparse]
    for name in names:
        if name not in known:
            raise ValueError(
                f"contexts: the dataset has no sparse feature {name!r}{nearest_hint(name, known)}"
            )
    return [slice(place * dim, (place + 1) * dim) for place in map(known.index, names)]


def select_context(pooled_BE: Tensor, columns: Sequence[slice]) -> Tensor | None:
    """Return [B, C], the embeddings in some columns, or None without columns."""
    parts = [pooled_BE[:, c] for c in columns]
    return torch.cat(parts, dim=1) if len(parts) > 1 else next(iter(parts), None)
