"""Embeddings of numbers. B rows, D numbers, F frequencies, W width of an embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NUM_FREQUENCIES, WIDTH = 16, 4  # F and W; the first element of an embedding is the number itself
DEVIATION = 0.3  # of the frequencies at the start, for numbers whose deviation is about 1
BOUND = 3.0  # of the numbers' absolute values after compression
LARGEST = 1e9  # whose square is finite in float32


class PeriodicNumbers(nn.Module):
    """A vector for each number x: x, and a linear map of waves cos(2 pi w x + b).

    The embeddings PBLD of RealMLP (Holzmueller et al. 2024, arXiv:2407.04491, appendix A), after
    the periodic ones of Gorishniy et al. 2022 (arXiv:2203.05556, eq. 2): a network finds steps and
    hills of a number with them from far fewer rows. Numbers are first compressed into (-3, 3) by
    x / sqrt(1 + (x / 3)^2), so that outliers do not get waves of their own.

    Args:
        num_numbers: D, whose deviations should be about 1.
    """

    def __init__(self, num_numbers: int) -> None:
        super().__init__()
        shape, bound = (num_numbers, NUM_FREQUENCIES), 1 / math.sqrt(NUM_FREQUENCIES)
        self.frequencies = nn.Parameter(torch.randn(shape) * DEVIATION)
        self.phases = nn.Parameter(torch.empty(shape).uniform_(-math.pi, math.pi))
        self.weight = nn.Parameter(torch.empty(*shape, WIDTH - 1).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_numbers, WIDTH - 1).uniform_(-bound, bound))
        self.width = num_numbers * WIDTH

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D x W]."""
        x_BD = x_BD.clamp(-LARGEST, LARGEST)
        x_BD1 = (x_BD * torch.rsqrt(1 + (x_BD / BOUND) ** 2))[:, :, None]
        waves_BDF = torch.cos(2 * math.pi * x_BD1 * self.frequencies + self.phases)
        mapped_BDW = torch.matmul(waves_BDF[:, :, None], self.weight).squeeze(2) + self.bias
        return torch.cat((x_BD1, mapped_BDW), dim=2).flatten(1)
