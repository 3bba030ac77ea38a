"""Factorization machine (Rendle 2010), second order."""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_dot_sum(x_BND: Tensor) -> Tensor:
    """Sum of the dot products of all pairs of vectors: (|sum x|^2 - sum |x|^2) / 2, [B, 1].

    Lemma 3.1 of Rendle 2010: linear in the number of vectors. In float32 also under autocast,
    since no product here is a matrix product.
    """
    sum_BD = x_BND.sum(1)
    # the square of a norm: a third of the time of a sum of squares, which would be written out
    length_B1 = torch.linalg.vector_norm(x_BND.flatten(1), dim=1, keepdim=True)
    return 0.5 * (sum_BD.square().sum(1, keepdim=True) - length_B1.square())
