"""Dropout that costs little on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 1 << 16  # of the random numbers that an element is kept or dropped by


class Dropout(nn.Dropout):
    """Each element is zero with probability p, or divided by 1 - p, in training only.

    Torch draws 32 random bits an element for it and compares them as a double, which on CPU costs
    as much as the matrix product that follows. Here an element takes 16 bits, a quarter of a
    64-bit draw, so p is rounded to a multiple of 1/65536; what is kept is scaled by the rounded
    one. Draws come from torch's own generator, which checkpoints hold.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # one fused kernel there
            return functional.dropout(x, self.p)
        dropped = round(self.p * _LEVELS)
        if dropped == _LEVELS:
            return x * 0.0
        kept = torch.ge(_bits(x.shape), dropped - _LEVELS // 2, out=torch.empty_like(x.detach()))
        return x * kept.mul_(_LEVELS / (_LEVELS - dropped))


def _bits(shape: torch.Size) -> Tensor:
    """Random numbers of 16 bits, int16."""
    draws = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64)
    draws.random_(torch.iinfo(torch.int64).min, None)
    return draws.view(torch.int16)[: shape.numel()].view(shape)
