"""Dropout that costs little on CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.models.layers.row_draws import draw_bits

_LEVELS = 1 << 16  # values of the random number that decides what is dropped


class Dropout(nn.Dropout):
    """In training, set each element to zero with probability p, or divide it by 1 - p.

    Torch draws 32 random bits for each element and compares them as a double, which on CPU costs
    as much as the matrix product that follows. Here an element takes 16 bits, a quarter of a
    64-bit draw. So p is rounded to a multiple of 1/65536, and kept elements are scaled by the
    rounded p. In an update the dropped elements of a row depend on the update's seed and the
    row's index in it, so that micro-batches, ranks, and threads with parts of the rows drop the
    same; see `row_draws`. Otherwise torch's generator is used. A GPU and compiled code use
    torch's dropout.

    Args:
        p: the probability.
        row_dim: dimension of the rows.
    """

    def __init__(self, p: float, *, row_dim: int = 0) -> None:
        super().__init__(p)
        self.row_dim = row_dim

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # one fused kernel
            return functional.dropout(x, self.p)
        scale = torch.empty(x.movedim(self.row_dim, 0).shape, dtype=x.dtype)
        rest = scale.view(-1)
        for is_kept in draw_kept(self.p, scale.shape):
            rest[: len(is_kept)].copy_(torch.from_numpy(is_kept)).mul_(kept_scale(self.p))
            rest = rest[len(is_kept) :]
        return x * scale.movedim(0, self.row_dim)


def draw_kept(p: float, shape: torch.Size) -> Iterator[np.ndarray]:
    """Yield 1 for the elements of a shape that dropout keeps, else 0, as uint8, flat, in pieces."""
    dropped = round(p * _LEVELS)
    for bits in draw_bits(shape):
        yield np.greater_equal(bits, dropped).view(np.uint8)


def kept_scale(p: float) -> float:
    """Return the factor of elements that dropout keeps, 1 / (1 - p) for the rounded p."""
    return _LEVELS / max(_LEVELS - round(p * _LEVELS), 1)
