"""HSTU (Zhai et al. 2024, arXiv:2402.17152): pointwise aggregated attention over a user's items.

B batch, L sequence length, D width, H heads, A width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Count, DropoutRate, Size, Width
from runner.models.layers.attention import SiluWeights, attend, attends_in_blocks
from runner.models.layers.dropout import Dropout
from runner.models.layers.linear import Linear
from runner.models.layers.transformer import check_heads
from runner.models.retrieval.next_item import CausalModel


class HSTUBlock(nn.Module):
    """x + f2(Norm(A(x) V(x)) * U(x)), eq. 1 to 3, with A = silu(Q K^T + rab) / L and no softmax.

    U, V, Q and K are silu(f1(Norm(x))). A place sees itself and the places before it, so padding
    must be at the end of the sequence. The bias rab is learnt for each distance in places; we omit
    the paper's bias of the distance in time. As in the authors' code, the norms have no weights,
    f1 has no bias, and scores are divided by the longest length.

    Args:
        width: D.
        num_heads: H.
        max_length: the longest L.
        dropout: dropout of the input of f2.

    Raises:
        ValueError: if the width is not a multiple of `num_heads`.
    """

    def __init__(self, width: Size, num_heads: Size, max_length: Size, dropout: float) -> None:
        super().__init__()
        check_arguments(HSTUBlock.__init__, locals())
        check_heads(width, num_heads)
        self.num_heads, self.max_length = num_heads, max_length
        self.project = Linear(width, 4 * width, bias=False)
        self.distance_bias = nn.Parameter(torch.empty(max_length, 1))
        nn.init.normal_(self.distance_bias, std=0.02)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = Linear(width, width)
        self.drop = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Return [B, L, D]."""
        gate_BLD, *parts = functional.silu(self.project(self.norm(x_BLD))).chunk(4, dim=2)
        value, query, key = (
            torch.unflatten(part, 2, (self.num_heads, -1)).transpose(1, 2) for part in parts
        )
        place_L = torch.arange(x_BLD.shape[1], device=x_BLD.device)
        distance_LL = place_L[:, None] - place_L
        # distances repeat: on CPU the backward of indexing adds repeats in another order every time
        bias_LL = functional.embedding(distance_LL.clamp(min=0), self.distance_bias)[:, :, 0]
        if attends_in_blocks(self, query):
            mixed_BHLA = attend(query, key, value, SiluWeights(self.max_length), bias_LL)
        else:
            scores_BHLL = functional.silu(query @ key.transpose(2, 3) + bias_LL) / self.max_length
            scores_BHLL = scores_BHLL.masked_fill(distance_LL < 0, 0.0)
            mixed_BHLA = scores_BHLL.to(value.dtype) @ value
        mixed_BLD = self.norm(mixed_BHLA.transpose(1, 2).flatten(2))
        output_BLD: Tensor = self.out(self.drop(mixed_BLD * gate_BLD))
        return x_BLD + output_BLD


class HSTU(CausalModel):
    """The next item of a sequence: r = F_t . M_i, where M is the table of the items itself.

    F are the states of the last block after a layer norm; the authors' code scales queries and
    items to length 1 there. The loss is configurable; the paper's is a sampled softmax. The paper's
    sequences also hold the user's actions; ours are items only.

    Args:
        schema: see `NextItemModel`.
        embedding_dim: D, width of the table and of a query.
        num_blocks: blocks of attention.
        num_heads: heads of each block.
        dropout: dropout of the embeddings and in the blocks.
        shared: further arguments of `CausalModel`.

    Raises:
        ValueError: if the schema lacks what is needed, or if sizes are incompatible.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_blocks: Count,
        num_heads: Count,
        dropout: DropoutRate = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim=embedding_dim, **shared)
        self.drop = Dropout(dropout)
        self.blocks = nn.Sequential(
            *(
                HSTUBlock(embedding_dim, num_heads, self.max_length, dropout)
                for _ in range(num_blocks)
            )
        )
        self.norm = nn.LayerNorm(embedding_dim)

    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return F of every place, [B, L, D]."""
        x_BLD = self.drop(embedded_BLD * math.sqrt(embedded_BLD.shape[2]))
        states_BLD: Tensor = self.norm(self.blocks(x_BLD))
        return states_BLD
