"""AutoInt (Song et al. 2019, arXiv:1810.11921): self-attention over fields.

B batch, N fields, D width of the input, H heads, A width of a head.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments, check_value
from runner.models.argument_types import Count, Size, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import Linear, StackedLinear
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.small_products import multiply_pairs


class AutoInt(DeepModel):
    """Interacting layers on one vector per field, then a linear layer on all of them, eq. 9.

    With `deep` it is the paper's AutoInt+, which adds the logit of a deep network.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        num_layers: number of interacting layers.
        attention_dim: width of an interacting layer, over all heads.
        num_heads: heads of an interacting layer.
        deep: hidden widths of the deep network; empty for none.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, if there is no layer, or if the
            heads do not divide `attention_dim`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_layers: Count,
        attention_dim: Width,
        num_heads: Count,
        deep: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(AutoInt.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        num_tasks = len(schema.tasks)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.attention = InteractingLayers(embedding_dim, attention_dim, num_layers, num_heads)
        self.head = Linear(self.fields.num_fields * attention_dim, num_tasks)
        self.deep = None
        if deep:
            deep = [*deep, num_tasks]
            self.deep = mlp(self.fields.width, deep, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        logits_BT = self.head(self.attention(x_BND).flatten(1))
        if self.deep is not None:
            logits_BT = logits_BT + self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(logits_BT, batch)


BLOCK_NUMBERS = 1 << 21  # of a layer, for the rows that pass the layers together in training


class InteractingLayers(nn.Sequential):
    """Interacting layers in sequence.

    In training some rows pass all layers before the next ones do, so that the scores of a layer
    are in the caches until its softmax and its product with the values have read them.

    Args:
        num_inputs: width of a field's vector before the first layer.
        width: of a field's vector after each layer.
        num_layers: number of layers.
        num_heads: of each.

    Raises:
        ValueError: if `width` is not a multiple of `num_heads`.
    """

    def __init__(self, num_inputs: int, width: int, num_layers: int, num_heads: int) -> None:
        widths = [num_inputs, *[width] * num_layers]
        super().__init__(
            *(InteractingLayer(before, after, num_heads) for before, after in pairwise(widths))
        )
        self.width, self.num_heads = width, num_heads

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, N, width]."""
        if not self.training or torch.compiler.is_compiling() or not x_BND.is_cpu:
            return self._pass(x_BND)
        num_fields = x_BND.shape[1]
        numbers = num_fields * (self.num_heads * num_fields + 4 * self.width)  # scores, projections
        rows = max(1, BLOCK_NUMBERS // numbers)
        blocks = [self._pass(block_BND) for block_BND in torch.split(x_BND, rows)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _pass(self, x_BND: Tensor) -> Tensor:
        for layer in self:
            x_BND = layer(x_BND)
        return x_BND


class InteractingLayer(nn.Module):
    """relu(concatenated heads + W_res e), eq. 5 to 8. Scores are dot products without scaling.

    Args:
        num_inputs: D.
        width: H x A.
        num_heads: H.

    Raises:
        ValueError: if `width` is not a multiple of `num_heads`.
    """

    def __init__(self, num_inputs: int, width: int, num_heads: int) -> None:
        super().__init__()
        check_value("attention_dim", width, Size)
        check_value("num_heads", num_heads, Size)
        if width % num_heads:
            raise ValueError(f"attention_dim={width}: must be a multiple of num_heads={num_heads}")
        self.num_heads = num_heads
        head = width // num_heads
        # rows of the weight: queries of each head, then keys, then values, then all residuals
        self.rows = [head] * (3 * num_heads) + [width]
        self.project = StackedLinear(num_inputs, 4 * width, num_stacked=4, bias=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, N, H x A]."""
        # The weights are split, not the product: slicing heads out of one large product, and adding
        # their gradients back into it, costs more than the product.
        *parts, residual = torch.split(self.project.weight, self.rows)
        heads_BNA = []
        for h in range(self.num_heads):
            query_BNA, key_BNA, value_BNA = (
                functional.linear(x_BND, weight) for weight in parts[h :: self.num_heads]
            )
            scores_BNN = multiply_pairs(query_BNA, key_BNA.transpose(1, 2)).softmax(2)
            heads_BNA.append(multiply_pairs(scores_BNN, value_BNA))
        mixed_BNW = torch.cat(heads_BNA, dim=2) if len(heads_BNA) > 1 else heads_BNA[0]
        return torch.relu(mixed_BNW + functional.linear(x_BND, residual))
