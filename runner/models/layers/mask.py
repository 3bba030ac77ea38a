"""Building blocks of MaskNet (Wang et al. 2021, arXiv:2102.07619).

B batch, N fields, D embedding width, E = N x D, W width of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.config_value import check_value
from runner.models.argument_types import Positive, Size
from runner.models.layers.linear import Linear


class FieldNorm(nn.Module):
    """Layer normalisation of each field separately; each field has its own gain and bias."""

    def __init__(self, num_fields: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_fields, dim))
        self.bias = nn.Parameter(torch.zeros(num_fields, dim))

    def forward(self, x_BND: Tensor) -> Tensor:
        normed_BND = functional.layer_norm(x_BND, x_BND.shape[-1:])
        return normed_BND * self.weight + self.bias


class MaskBlock(nn.Module):
    """relu(LN(W (mask * x))), eq. 8 to 10; mask = W_2 relu(W_1 v + b_1) + b_2, eq. 5.

    Args:
        num_mask_inputs: E, width of the embeddings v that make the mask.
        num_inputs: width of x.
        width: width of the output.
        reduction: width of the mask's hidden layer in widths of v.

    Raises:
        ValueError: if a size is out of range.
    """

    def __init__(self, num_mask_inputs: int, num_inputs: int, width: int, reduction: float) -> None:
        super().__init__()
        check_value("blocks", width, Size)
        check_value("reduction", reduction, Positive)
        hidden = max(1, round(num_mask_inputs * reduction))
        self.mask = nn.Sequential(
            Linear(num_mask_inputs, hidden), nn.ReLU(), Linear(hidden, num_inputs)
        )
        self.linear = Linear(num_inputs, width, bias=False)  # LN has a bias of its own
        self.norm = nn.LayerNorm(width)

    def forward(self, v_BE: Tensor, x_B: Tensor) -> Tensor:
        """Return [B, W]."""
        return torch.relu(self.norm(self.linear(self.mask(v_BE) * x_B)))
