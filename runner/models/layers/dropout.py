"""Dropout that costs little on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 1 << 16  # values of the random number that decides whether an element is dropped


class Dropout(nn.Dropout):
    """In training, set each element to zero with probability p, or divide it by 1 - p.

    Torch draws 32 random bits for each element and compares them as a double, which on CPU costs
    as much as the matrix product that follows. Here an element takes 16 bits, a quarter of a
    64-bit draw. So p is rounded to a multiple of 1/65536, and elements that stay are scaled by the
    rounded p. Draws come from torch's own generator, which checkpoints hold.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # one fused kernel
            return functional.dropout(x, self.p)
        dropped = round(self.p * _LEVELS)
        if dropped == _LEVELS:
            return x * 0.0
        scale = torch.ge(_bits(x.shape), dropped - _LEVELS // 2, out=torch.empty_like(x.detach()))
        return x * scale.mul_(_LEVELS / (_LEVELS - dropped))


def _bits(shape: torch.Size) -> Tensor:
    """Return random numbers, int16."""
    draws = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64)
    draws.random_(torch.iinfo(torch.int64).min, None)
    return draws.view(torch.int16)[: shape.numel()].view(shape)
