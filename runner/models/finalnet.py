"""FinalNet (Zhu et al. 2023, doi:10.1145/3539618.3591988): blocks of factorized interactions.

B batch, N fields, D embedding width, W width of a layer, T tasks, K blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import SomeWidths, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.dropout import Dropout
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import StackedLinear
from runner.models.layers.mlp import HiddenLayers, RowSequential, init_linear_layers


class FinalNet(DeepModel):
    """The mean of the logits of two blocks of factorized interaction layers, or those of one.

    Each layer multiplies two linear maps of its input, so degrees double from layer to layer. With
    `model/loss=self_distillation`, the paper's, the blocks also learn from their mean.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        first: widths of the first block's layers.
        second: widths of the second block's layers; empty for a single block.
        residual: how a layer combines the maps, see `FactorizedInteraction`.
        field_gate: whether the first block also reads the fields times their gates.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, if the first block has no layer, if
            `residual` is unknown, or if it is concat and a width is odd.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        first: SomeWidths,
        second: Widths,
        residual: Literal["concat", "sum"],
        field_gate: bool,
        **shared: Any,
    ) -> None:
        check_arguments(FinalNet.__init__, locals())
        for name, widths in (("first", first), ("second", second)):
            if residual == "concat" and any(width % 2 for width in widths):
                raise ValueError(
                    f"{name}={list(widths)}: must be even with residual=concat, which puts two "
                    "halves side by side; residual=sum takes any width"
                )
        super().__init__(schema, embedding_dim, **shared)
        self.fields = FieldEmbeddings(schema, embedding_dim)
        self.gate = FieldGate(self.fields.num_fields) if field_gate else None
        width = self.fields.width
        blocks = [final_block(width * (2 if field_gate else 1), first, self.hidden, residual)]
        if second:
            blocks.append(final_block(width, second, self.hidden, residual))
        self.blocks = nn.ModuleList(blocks)
        lasts = [widths[-1] for widths in (first, second) if widths]
        self.heads = nn.ModuleList(nn.Linear(last, len(schema.tasks)) for last in lasts)
        init_linear_layers(self, self.linear_init)

    @property
    def provides(self) -> tuple[str, ...]:
        """Return the outputs that a loss can read in a prediction, see `check_loss_inputs`."""
        return ("logits", "blocks") if len(self.blocks) > 1 else ("logits",)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        gated_BND = x_BND if self.gate is None else self.gate(x_BND)
        logits = [
            head(block(fields_BND.flatten(1), batch.weights_B))
            for fields_BND, block, head in zip((gated_BND, x_BND), self.blocks, self.heads)
        ]
        if len(logits) == 1:
            return Prediction.of(logits[0], batch)
        blocks_KBT = torch.stack(logits).float()
        return Prediction.of(blocks_KBT.mean(0), batch, blocks_KBT=blocks_KBT)


def final_block(
    num_inputs: int, widths: Sequence[int], hidden: HiddenLayers, residual: str
) -> RowSequential:
    """Return factorized interaction layers, each with the norm, activation and dropout given."""
    layers: list[nn.Module] = []
    for width, rate in zip(widths, hidden.dropouts(len(widths))):
        layers += [FactorizedInteraction(num_inputs, width, residual), *hidden.modules(width)]
        if rate:
            layers.append(Dropout(rate))
        num_inputs = width
    return RowSequential(*layers)


class FactorizedInteraction(nn.Module):
    """With a = W_1 x + b_1 and c = W_2 x + b_2: a + a * c (sum), or a and a * c (concat).

    The paper's layer with two factors. As in the authors' code (FuxiCTR), from which its results
    come, the activation follows the layer and not c. Concat, with maps of half the width, has the
    weights of a plain linear layer, sum has twice as many.

    Args:
        num_inputs: width of x.
        width: W; even if `residual` is concat.
        residual: concat or sum.
    """

    def __init__(self, num_inputs: int, width: int, residual: str) -> None:
        super().__init__()
        self.concat = residual == "concat"
        num_outputs = width if self.concat else 2 * width
        self.maps = StackedLinear(num_inputs, num_outputs, num_stacked=2)

    def forward(self, x_B: Tensor) -> Tensor:
        """Return [B, W]."""
        first_B, second_B = self.maps(x_B).chunk(2, dim=1)
        product_B = first_B * second_B
        return torch.cat((first_B, product_B), dim=1) if self.concat else first_B + product_B


class FieldGate(nn.Module):
    """The fields, and the fields times gates g_n = b_n + sum over m of W_nm x_m, all 1 at first."""

    def __init__(self, num_fields: int) -> None:
        super().__init__()
        self.weight_NN = nn.Parameter(torch.zeros(num_fields, num_fields))
        self.bias_N = nn.Parameter(torch.ones(num_fields))

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, 2 N, D]."""
        gates_BDN = nn.functional.linear(x_BND.transpose(1, 2), self.weight_NN, self.bias_N)
        return torch.cat((x_BND, x_BND * gates_BDN.transpose(1, 2)), dim=1)
