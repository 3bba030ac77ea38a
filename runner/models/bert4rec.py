"""BERT4Rec (Sun et al. 2019, arXiv:1904.06690): masked items, predicted from both sides.

B batch, L sequence length, N = L + 1 places with that of the row's item, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import Count, DropoutRate, ShareBelow1, Width
from runner.models.layers.dropout import Dropout
from runner.models.layers.linear import Linear
from runner.models.layers.row_draws import draw_at_places
from runner.models.layers.sequences import is_event
from runner.models.layers.transformer import PostNormBlock
from runner.models.retrieval.next_item import NextItemModel, PlaceTargets


class BERT4Rec(NextItemModel):
    """The items at masked places: r = gelu(W F_t + b) . M_i, eq. 7 without its bias of an item.

    The place of the row's item is always masked, as in the paper's samples of the next item; in
    training, each place of the history is masked besides, with the same chance. Masks depend on the
    seed, the epoch and the row, so they are the same on any number of ranks. Places count from the
    row's item. The loss is configurable; the paper's is the softmax over all items (`every`).

    Args:
        schema: see `NextItemModel`.
        embedding_dim: D, width of the table and of a query.
        num_blocks: blocks of self-attention.
        num_heads: heads of each block.
        mask_share: the probability that a place of the history is masked in training.
        dropout: dropout of the embeddings and in the blocks.
        shared: further arguments of `NextItemModel`.

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
        mask_share: ShareBelow1,
        dropout: DropoutRate = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim=embedding_dim, **shared)
        self.mask_share = mask_share
        self.seed = int(torch.randint(2**31, ()))  # from the run's seed, so the same on all ranks
        self.mask_1D = nn.Parameter(torch.empty(1, embedding_dim))
        self.places_ND = nn.Parameter(torch.empty(self.max_length + 1, embedding_dim))
        for parameter in (self.mask_1D, self.places_ND):
            nn.init.normal_(parameter, std=0.02)
        self.drop = Dropout(dropout)
        self.blocks = nn.ModuleList(
            PostNormBlock(embedding_dim, num_heads, dropout, 4 * embedding_dim, nn.GELU())
            for _ in range(num_blocks)
        )
        self.out = Linear(embedding_dim, embedding_dim)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        length_B = embeddings.per_row[f"{self.history}:length"]
        ids_BL, items_BLD = embeddings.per_row[f"{self.history}:ids"], embeddings.sequences_BLD[0]
        if not self.training:
            return self.predict(self.encode(items_BLD, length_B)[:, 0], embeddings, batch)
        mask_BL = self.draw_masks(batch) & is_event(length_B, items_BLD.shape[1])
        hidden_BLD = torch.where(mask_BL[:, :, None], self.mask_1D.to(items_BLD.dtype), items_BLD)
        states_BND = self.encode(hidden_BLD, length_B)
        places = PlaceTargets(mask_BL, states_BND[:, 1:], items_BLD, ids_BL)
        return self.predict(states_BND[:, 0], embeddings, batch, places)

    def draw_masks(self, batch: Batch) -> Tensor:
        """Return which places of the histories are masked, [B, L], with an event or without."""
        x_BL = draw_at_places(batch, self.max_length, self.seed)
        uniform_BL = (x_BL & (2**24 - 1)).float() / 2**24
        return uniform_BL < self.mask_share

    def encode(self, hidden_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return the queries of the row's item, then of all places of the history, [B, N, D]."""
        mask_B1D = self.mask_1D.to(hidden_BLD.dtype).expand(length_B.shape[0], 1, -1)
        place_L = torch.arange(hidden_BLD.shape[1], device=length_B.device)
        age_BL = (length_B[:, None] - place_L).clamp(min=0)
        age_BN = functional.pad(age_BL, (1, 0))
        # ages repeat: on CPU the backward of indexing adds repeats in another order in every run
        places_BND = functional.embedding(age_BN, self.places_ND)
        x_BND = self.drop(torch.cat((mask_B1D, hidden_BLD), dim=1) + places_BND)
        is_seen_BN = functional.pad(is_event(length_B, hidden_BLD.shape[1]), (1, 0), value=True)
        for block in self.blocks:
            x_BND = block(x_BND, is_seen_BN)
        return functional.gelu(self.out(x_BND))

    def query_vectors(self, embeddings: Embeddings, dense_BD: Tensor) -> Tensor:
        length_B = embeddings.per_row[f"{self.history}:length"]
        return self.encode(embeddings.sequences_BLD[0], length_B)[:, 0]
