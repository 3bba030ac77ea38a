"""Factorization machine (Rendle 2010), second order."""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_dot_sum(x_BND: Tensor) -> Tensor:
    """Return [B, 1], the sum of the dot products of all pairs: (|sum x|^2 - sum |x|^2) / 2.

    By lemma 3.1 of Rendle 2010 its cost is linear in the number of vectors. It computes in float32
    also under autocast, since no product here is a matrix product.
    """
    sum_BD = x_BND.sum(1)
    # The square of a norm takes a third of the time of a sum of squares that are written out.
    norm_B1: Tensor = torch.linalg.vector_norm(x_BND.flatten(1), dim=1, keepdim=True)
    return 0.5 * (sum_BD.square().sum(1, keepdim=True) - norm_B1.square())
