"""Blocks of self-attention: SASRec's (Kang and McAuley 2018, arXiv:1808.09781), and post-norm.

B batch, L sequence length, D width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.config_value import check_value
from runner.models.argument_types import Size
from runner.models.layers.attention import SoftmaxWeights, attend, attends_in_blocks
from runner.models.layers.dropout import Dropout
from runner.models.layers.linear import Linear, linear


def check_heads(width: int, num_heads: int) -> None:
    """Check the heads of self-attention.

    Raises:
        ValueError: if there are none, or if they do not divide the width.
    """
    check_value("num_heads", num_heads, Size)
    if width % num_heads:
        raise ValueError(f"num_heads={num_heads}: must divide embedding_dim={width}")


class CausalBlock(nn.Module):
    """x + drop(attention(LN(x), x, x)), then x + drop(FFN(LN(x))), eq. 2 to 6.

    A place sees itself and the places before it, so padding must be at the end of the sequence. The
    feed-forward network is as wide as its input.

    Raises:
        ValueError: if the width is not a multiple of `num_heads`.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        check_heads(width, num_heads)
        self.num_heads = num_heads
        self.query_norm = nn.LayerNorm(width)
        self.query = Linear(width, width)
        self.key_value = KeyValue(width, 2 * width)
        self.out = Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.first, self.second = Linear(width, width), Linear(width, width)
        self.drop = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Return [B, L, D]."""
        query_BLD = self.query(self.query_norm(x_BLD))
        query, key, value = (
            torch.unflatten(part, 2, (self.num_heads, -1)).transpose(1, 2)
            for part in (query_BLD, *self.key_value(x_BLD).chunk(2, dim=2))
        )
        mixed = self._attend(query, key, value)
        x_BLD = x_BLD + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        hidden_BLD = self.drop(self.first(self.norm(x_BLD)).relu())
        output_BLD: Tensor = self.drop(self.second(hidden_BLD))
        return x_BLD + output_BLD

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return drop(softmax(q k^T / sqrt(A), over the places up to the query's)) v."""
        p = self.drop.p if self.training else 0.0
        if not attends_in_blocks(self, query, is_fused=p == 0.0):
            return functional.scaled_dot_product_attention(
                query, key, value, dropout_p=p, is_causal=True
            )
        query = query / math.sqrt(query.shape[3])
        return attend(query, key, value, SoftmaxWeights(p))


class KeyValue(Linear):
    """Concatenated keys and values, [..., 2D], without a gradient for the bias of the keys.

    That bias adds the same number to all scores of a query, which the softmax cancels. So its
    gradient is zero up to rounding, from which Adam and Adagrad would make whole steps: after 30
    updates it differed by 3e-4 between one rank and two, everything else by 1e-7.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., 2D]."""
        of_key_D, of_value_D = self.bias.chunk(2)
        return linear(x, self.weight, torch.cat((of_key_D.detach(), of_value_D)))


class PostNormBlock(nn.Module):
    """LN(x + drop(attention(x, x, x))), then LN(y + drop(FFN(y))), as in Vaswani et al. 2017.

    A place sees the places in a mask. Queries, keys and values have no bias; see
    `KeyValue`.

    Args:
        width: D.
        num_heads: H.
        dropout: dropout of the outputs of attention and feed-forward network.
        hidden: width of the feed-forward network.
        activation: of the feed-forward network.

    Raises:
        ValueError: if the width is not a multiple of `num_heads`.
    """

    def __init__(
        self, width: int, num_heads: int, dropout: float, hidden: int, activation: nn.Module
    ) -> None:
        super().__init__()
        check_heads(width, num_heads)
        self.num_heads = num_heads
        self.project = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.second = Linear(width, hidden), Linear(hidden, width)
        self.activation = activation
        self.drop = Dropout(dropout)

    def forward(self, x_BLD: Tensor, is_seen_BL: Tensor) -> Tensor:
        """Return [B, L, D]; `is_seen_BL` must contain a place in every row."""
        query, key, value = (
            torch.unflatten(part, 2, (self.num_heads, -1)).transpose(1, 2)
            for part in self.project(x_BLD).chunk(3, dim=2)
        )
        if attends_in_blocks(self, query, is_fused=True):
            query = query / math.sqrt(query.shape[3])
            mixed = attend(query, key, value, SoftmaxWeights(is_seen_BL=is_seen_BL))
        else:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=is_seen_BL[:, None, None, :]
            )
        y_BLD = self.first_norm(x_BLD + self.drop(self.out(mixed.transpose(1, 2).flatten(2))))
        output_BLD = self.second(self.activation(self.first(y_BLD)))
        z_BLD: Tensor = self.second_norm(y_BLD + self.drop(output_BLD))
        return z_BLD
