"""Factorization machine (Rendle 2010), second order. B batch, N vectors, D their width."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Schema


class PairTerm(nn.Module):
    """The sum of the dot products of all pairs of vectors, the same for all tasks.

    A softmax over classes ignores a term that is the same for all: for classes, each task weights
    the dimensions of the vectors separately.

    Args:
        schema: its tasks are predicted.
        width: D, of the vectors.
    """

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        has_classes = any(task.one_of for task in schema.tasks)
        self.weights = nn.Linear(width, len(schema.tasks), bias=False) if has_classes else None

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, 1], or [B, T]."""
        if self.weights is None:
            return pairwise_dot_sum(x_BND)
        products_BD = 0.5 * (x_BND.sum(1).square() - x_BND.square().sum(1))
        logits_BT: Tensor = self.weights(products_BD)
        return logits_BT


def pairwise_dot_sum(x_BND: Tensor) -> Tensor:
    """Return [B, 1], the sum of the dot products of all pairs: (|sum x|^2 - sum |x|^2) / 2.

    By lemma 3.1 of Rendle 2010 its cost is linear in the number of vectors. It computes in float32
    also under autocast, since no product here is a matrix product.
    """
    if torch.compiler.is_compiling():  # the compiler fuses what the class below saves
        return _dot_sum(x_BND)
    out_B1: Tensor = _PairwiseDotSum.apply(x_BND)  # type: ignore[no-untyped-call]
    return out_B1


class _PairwiseDotSum(torch.autograd.Function):
    """The gradient of a vector is the sum of the others, which takes half of autograd's time."""

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor) -> Tensor:
        ctx.save_for_backward(x_BND)
        return _dot_sum(x_BND)

    @staticmethod
    def backward(ctx: Any, grad_B1: Tensor) -> Tensor:
        (x_BND,) = ctx.saved_tensors
        others_BND: Tensor = x_BND.sum(1, keepdim=True) - x_BND
        return others_BND.mul_(grad_B1[:, :, None])


def _dot_sum(x_BND: Tensor) -> Tensor:
    sum_BD = x_BND.sum(1)
    # The square of a norm takes a third of the time of a sum of squares that are written out.
    norm_B1: Tensor = torch.linalg.vector_norm(x_BND.flatten(1), dim=1, keepdim=True)
    return 0.5 * (sum_BD.square().sum(1, keepdim=True) - norm_B1.square())
