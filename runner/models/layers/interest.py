"""A history as one vector: its mean, or DIN's weighted sum (Zhou et al. 2018, arXiv:1706.06978).

B batch, L sequence length, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.models.layers.mlp import HiddenLayers, mlp
from runner.models.layers.sequences import is_event
from runner.models.layers.small_products import multiply_pairs


class LocalActivation(nn.Module):
    """sum_j a(e_j, v) e_j, eq. 3, where the MLP a maps (e, e - v, e * v, v) to a number.

    The weights are not normalised: their sum shows how strong the interest is. The paper's MLP has
    the outer product of both as input; its published code has difference and product.

    Args:
        dim: D.
        widths: hidden widths of a.
        hidden: the layers of a, for [B x L, C].
    """

    def __init__(self, dim: int, widths: Sequence[int], hidden: HiddenLayers) -> None:
        super().__init__()
        self.unit = mlp(4 * dim, [*widths, 1], hidden, last="linear")

    def forward(
        self, x_BLD: Tensor, item_BD: Tensor, length_B: Tensor, weights_B: Tensor
    ) -> Tensor:
        """Return [B, D]. Places from `length_B` on do not count, nor rows of weight 0."""
        item_BLD = item_BD[:, None].expand_as(x_BLD)
        both_BLE = torch.cat((x_BLD, x_BLD - item_BLD, x_BLD * item_BLD, item_BLD), dim=2)
        is_padding_BL = ~is_event(length_B, x_BLD.shape[1])
        counts_BL = weights_B[:, None].masked_fill(is_padding_BL, 0.0)
        # layers take their channels in the second dimension
        weight_BL = self.unit(both_BLE.flatten(0, 1), counts_BL.flatten()).view(x_BLD.shape[:2])
        weight_BL = weight_BL.masked_fill(is_padding_BL, 0.0)
        return multiply_pairs(weight_BL[:, None].to(x_BLD.dtype), x_BLD)[:, 0]


def mean_pool(sequence_BLD: Tensor, length_B: Tensor, half_life: float | None = None) -> Tensor:
    """Return the mean of each sequence, [B, D]; 0 for a sequence without events.

    Args:
        sequence_BLD: zero behind the length.
        length_B: events of each sequence.
        half_life: an event weighs half as much as one this many places after it; None for equal
            weights.
    """
    if half_life is None:
        # places after the end get no gradient, which clipping would count
        is_padding_BL = ~is_event(length_B, sequence_BLD.shape[1])
        events_BLD = sequence_BLD.masked_fill(is_padding_BL[:, :, None], 0.0)
        return events_BLD.sum(1) / length_B.clamp(min=1)[:, None]
    place_L = torch.arange(sequence_BLD.shape[1], device=length_B.device)
    age_BL = length_B[:, None] - 1 - place_L  # 0 for the newest
    weight_BL = torch.exp2(age_BL.clamp(min=0) / -half_life) * (age_BL >= 0)
    weight_BL = weight_BL / weight_BL.sum(1, keepdim=True).clamp(min=1)  # the newest weighs 1
    return multiply_pairs(weight_BL[:, None, :].to(sequence_BLD.dtype), sequence_BLD)[:, 0]
