"""Self-attention over fields, AutoInt (Song et al. 2019, arXiv:1810.11921).

B batch, N fields, D width of the input, H heads, A width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.models.layers.linear import StackedLinear
from runner.models.layers.sizes import check_sizes


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
        check_sizes(attention_dim=width, num_heads=num_heads)
        if width % num_heads:
            raise ValueError(f"attention_dim={width}: must be a multiple of num_heads={num_heads}")
        self.num_heads = num_heads
        head = width // num_heads
        # rows of the weight: queries of each head, then keys, then values, then all residuals
        self.rows = [head] * (3 * num_heads) + [width]
        self.project = StackedLinear(num_inputs, 4 * width, num_stacked=4, bias=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, N, H x A]."""
        # The weights are split, not the product: taking heads out of one large product, and their
        # gradients back into it, costs more than the product.
        *parts, residual = torch.split(self.project.weight, self.rows)
        heads_BNA = []
        for h in range(self.num_heads):
            query_BNA, key_BNA, value_BNA = (
                functional.linear(x_BND, weight) for weight in parts[h :: self.num_heads]
            )
            scores_BNN = torch.bmm(query_BNA, key_BNA.transpose(1, 2)).softmax(2)
            heads_BNA.append(torch.bmm(scores_BNN, value_BNA))
        mixed_BNW = torch.cat(heads_BNA, dim=2) if len(heads_BNA) > 1 else heads_BNA[0]
        return torch.relu(mixed_BNW + functional.linear(x_BND, residual))
