"""GRU4Rec (Hidasi et al. 2016, arXiv:1511.06939): a recurrent network over a user's items."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from runner.batch import Schema
from runner.models.argument_types import Count, DropoutRate, Width
from runner.models.layers.dropout import Dropout
from runner.models.layers.linear import Linear
from runner.models.retrieval.next_item import CausalModel


class GRU4Rec(CausalModel):
    """The next item of a sequence: r = (W h_t + b) . M_i, where h_t is the state of a GRU, eq. 1-4.

    M is the table of the items itself, the tied output of the authors' later code, and W maps a
    state to its width. The loss is configurable; the paper's are BPR and TOP1 over the other
    sessions of the batch. We train on histories from their beginning, so that no state is carried
    from one batch to the next as in the paper's parallel sessions.

    Args:
        schema: see `NextItemModel`.
        embedding_dim: D, width of the table and of a query.
        hidden_dim: width of the state of each GRU layer.
        num_layers: layers of the GRU.
        dropout: dropout of the embeddings, between the layers, and of the last layer's states.
        shared: further arguments of `CausalModel`.

    Raises:
        ValueError: if the schema lacks what is needed.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        hidden_dim: Width,
        num_layers: Count,
        dropout: DropoutRate = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim=embedding_dim, **shared)
        self.drop = Dropout(dropout)
        widths = [embedding_dim, *[hidden_dim] * num_layers]
        self.layers = nn.ModuleList(
            nn.GRU(width, hidden_dim, batch_first=True) for width in widths[:-1]
        )
        self.out = Linear(hidden_dim, embedding_dim)

    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return the state of every place, mapped to the width of items, [B, L, D]."""
        x_BLH = self.drop(embedded_BLD)
        for layer in self.layers:
            x_BLH = self.drop(layer(x_BLH)[0])
        states_BLD: Tensor = self.out(x_BLH)
        return states_BLD
