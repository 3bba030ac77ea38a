"""FinalMLP (Mao et al. 2023, arXiv:2304.00902): two gated MLPs and a bilinear fusion.

B batch, W width of the input, C width of a context, S width of a stream, T tasks, K heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.errors import nearest_hint
from runner.models.argument_types import (
    Count,
    DropoutRate,
    Size,
    TwoContexts,
    TwoStreams,
    Width,
    Widths,
)
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.linear import Linear, init_weight
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.small_products import multiply_pairs


class FinalMLP(DeepModel):
    """Two MLPs, each with its own gated view of the features, fused by a bilinear form.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table.
        streams: hidden widths of the two MLPs. `num_heads` must divide the last width of each.
        contexts: for each stream, the sparse features whose embeddings determine its gates (section
            "stream-specific feature selection"), such as those of the user for one stream and
            those of the item for the other. With an empty list, the gates are parameters, the same
            for every row.
        gate: hidden widths of the gates' MLPs.
        num_heads: heads of the fusion.
        embedding_dropout: dropout of the streams' input.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature or lacks one that determines gates, if there
            are not two streams with layers, or if the heads do not divide their last widths.
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


class FeatureGate(nn.Module):
    """x * 2 sigmoid(MLP(context)), eq. 4 and 5: a stream's view of the features.

    Args:
        num_inputs: W.
        num_context: C, or 0 for gates that are parameters, the same for every row.
        hidden: hidden widths of the MLP.
    """

    def __init__(self, num_inputs: int, num_context: int, hidden: Sequence[int]) -> None:
        super().__init__()
        # the paper's parameter vector through an MLP is equivalent to a parameter vector of gates
        self.learnt = None if num_context else nn.Parameter(torch.zeros(num_inputs))
        if num_context:
            self.mlp = mlp(num_context, [*hidden, num_inputs], last="linear")

    def forward(self, x_BW: Tensor, context_BC: Tensor | None) -> Tensor:
        gate = self.mlp(context_BC) if self.learnt is None else self.learnt
        return x_BW * (2 * torch.sigmoid(gate))


class BilinearFusion(nn.Module):
    """b + w_1 o_1 + w_2 o_2 + sum over heads of o_1 W_3 o_2, eq. 7 and 9, for each task.

    Raises:
        ValueError: if a stream's width is not a multiple of `num_heads`.
    """

    def __init__(self, width_1: int, width_2: int, num_outputs: int, num_heads: Size) -> None:
        super().__init__()
        check_arguments(BilinearFusion.__init__, locals())
        for width in (width_1, width_2):
            if width % num_heads:
                raise ValueError(
                    f"streams: their last widths, {width_1} and {width_2}, must be multiples of "
                    f"num_heads={num_heads}"
                )
        part_1, part_2 = width_1 // num_heads, width_2 // num_heads
        self.first = Linear(width_1, num_outputs)
        self.second = Linear(width_2, num_outputs, bias=False)
        self.bilinear_KSP = nn.Parameter(torch.empty(num_heads, part_1, num_outputs * part_2))
        bound = math.sqrt(6 / (part_1 + part_2))  # Xavier
        nn.init.uniform_(self.bilinear_KSP, -bound, bound)

    def init_own_weights(self, name: str) -> None:
        """Initialise the matrix of each head and task separately, for `init_linear_layers`."""
        for mapped_SP in self.bilinear_KSP.detach():
            for weight_SS in mapped_SP.chunk(self.first.out_features, dim=1):
                init_weight(weight_SS.T, name)

    def forward(self, o1_BS: Tensor, o2_BS: Tensor) -> Tensor:
        """Return [B, T]."""
        num_heads = len(self.bilinear_KSP)
        o1_KBS = torch.unflatten(o1_BS, 1, (num_heads, -1)).transpose(0, 1)
        o2_KB1S = torch.unflatten(o2_BS, 1, (num_heads, 1, -1)).transpose(0, 1)
        mapped = multiply_pairs(o1_KBS, self.bilinear_KSP)
        mapped_KBTS = torch.unflatten(mapped, 2, (-1, o2_KB1S.shape[-1]))
        linear_BT: Tensor = self.first(o1_BS) + self.second(o2_BS)
        return linear_BT + (mapped_KBTS * o2_KB1S).sum((0, 3))
