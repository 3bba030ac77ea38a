"""SASRec (Kang and McAuley 2018, arXiv:1808.09781): self-attention over a user's items."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Schema
from runner.models.argument_types import Count, DropoutRate, Width
from runner.models.layers.dropout import Dropout
from runner.models.layers.transformer import CausalBlock
from runner.models.retrieval.next_item import CausalModel


class SASRec(CausalModel):
    """The next item of a sequence: r = F_t . M_i, eq. 7, where M is the table of the items itself.

    The loss is configurable; the paper's is binary cross-entropy with one negative per place.
    Places count from the newest item, which is equivalent to the paper's padding at the front.

    Args:
        schema: see `NextItemModel`.
        embedding_dim: D, width of the table and of a query.
        num_blocks: blocks of self-attention.
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
        self.places_LD = nn.Parameter(torch.empty(self.max_length, embedding_dim))
        nn.init.normal_(self.places_LD, std=0.02)
        self.drop = Dropout(dropout)
        self.blocks = nn.Sequential(
            *(CausalBlock(embedding_dim, num_heads, dropout) for _ in range(num_blocks))
        )
        self.norm = nn.LayerNorm(embedding_dim)

    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return F of every place, [B, L, D]; places after the end of a sequence mean nothing."""
        place_L = torch.arange(embedded_BLD.shape[1], device=length_B.device)
        from_newest_BL = (length_B[:, None] - 1 - place_L).clamp(min=0)
        # places repeat: on CPU the backward of indexing adds repeats in another order in every run
        places_BLD = functional.embedding(from_newest_BL, self.places_LD)
        x_BLD = embedded_BLD * math.sqrt(embedded_BLD.shape[2]) + places_BLD
        states_BLD: Tensor = self.norm(self.blocks(self.drop(x_BLD)))
        return states_BLD
