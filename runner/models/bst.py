"""BST (Chen et al. 2019, arXiv:1905.06874): a transformer over a history and the candidate item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Schema
from runner.models.argument_types import Activation, Count, DropoutRate, Width, Widths
from runner.models.layers.dropout import Dropout
from runner.models.layers.history import HistoryModel
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.transformer import PostNormBlock


class BehaviourTransformer(nn.Module):
    """Blocks of attention over the candidate and the events before it, eq. 2 to 5.

    Args:
        dim: D.
        max_length: L, the longest history.
        num_blocks: number of blocks.
        num_heads: heads of each block.
        dropout: dropout of the input and in the blocks.

    Raises:
        ValueError: if `dim` is not a multiple of `num_heads`.
    """

    def __init__(
        self, dim: int, max_length: int, num_blocks: int, num_heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.places_ND = nn.Parameter(torch.empty(max_length + 1, dim))
        nn.init.normal_(self.places_ND, std=0.02)
        self.drop = Dropout(dropout)
        self.blocks = nn.ModuleList(
            PostNormBlock(dim, num_heads, dropout, dim, nn.LeakyReLU()) for _ in range(num_blocks)
        )

    def forward(
        self, x_BLD: Tensor, item_BD: Tensor, length_B: Tensor, weights_B: Tensor
    ) -> Tensor:
        """Return [B, (L + 1) x D]: the candidate, then events from the newest; 0 where none is."""
        num_places = x_BLD.shape[1]
        place_L = torch.arange(num_places, device=length_B.device)
        # newest first, so that an MLP finds an event of the same age at the same place; each place
        # is read once per row, so no sum of the backward has an order
        newest_BL = (length_B[:, None] - 1 - place_L) % num_places
        events_BLD = x_BLD.gather(1, newest_BL[:, :, None].expand_as(x_BLD))
        x_BND = torch.cat((item_BD[:, None], events_BLD), dim=1) + self.places_ND
        is_event_BL = place_L < length_B[:, None]
        is_seen_BN = torch.cat((torch.ones_like(is_event_BL[:, :1]), is_event_BL), dim=1)
        x_BND = self.drop(x_BND)
        for block in self.blocks:
            x_BND = block(x_BND, is_seen_BN)
        states_BE: Tensor = x_BND.masked_fill(~is_seen_BN[:, :, None], 0.0).flatten(1)
        return states_BE


class BST(HistoryModel):
    """Each history and the candidate item, transformed together, then an MLP over all places.

    The MLP sees the states of all places, all pooled features and the dense features. An event's
    place is its distance from the candidate, instead of the paper's time gap, and its embedding is
    added, while the paper concatenates it.

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table.
        num_blocks: blocks of attention for each history.
        num_heads: heads of each block.
        top: hidden widths of the MLP; a last linear layer with one logit per task follows.
        attention_dropout: dropout of the transformer's input and in its blocks.
        activation: of the MLP; None for the paper's leaky ReLU.
        shared: further arguments of `HistoryModel`.

    Raises:
        ValueError: if the schema has no such sequence, or if sizes are incompatible.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_blocks: Count,
        num_heads: Count,
        top: Widths,
        attention_dropout: DropoutRate = 0.0,
        activation: Activation = None,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, activation=activation or "leaky_relu", **shared)
        followed = [s for s, place in zip(self.sequences, self.candidates) if place is not None]
        self.transformers = nn.ModuleList(
            BehaviourTransformer(
                embedding_dim, s.max_length, num_blocks, num_heads, attention_dropout
            )
            for s in followed
        )
        width = self.num_inputs + embedding_dim * sum(s.max_length for s in followed)
        self.top = mlp(width, [*top, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    @property
    def interests(self) -> nn.ModuleList:
        return self.transformers
