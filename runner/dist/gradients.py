"""Gradients of parameters that every rank has a copy of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from runner.dist.ranks import Ranks


def sum_over_ranks(parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
    """Collective. Every gradient becomes its sum over ranks, in one exchange.

    A parameter without a gradient on some ranks gets the sum of the others'; without one on any,
    none. Equal bits on all ranks, so that copies of the parameters stay equal.
    """
    if not parameters:
        return
    missing = [p for p in parameters if p.grad is None]
    for parameter in missing:
        parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    there = torch.tensor([float(p not in set(missing)) for p in parameters])
    flat = torch.cat([*(g.flatten().float() for g in gradients), there.to(gradients[0].device)])
    ranks.add(flat)
    *sums, there = flat.split([*(g.numel() for g in gradients), len(parameters)])
    for gradient, summed in zip(gradients, sums):
        gradient.copy_(summed.view_as(gradient))
    if missing:
        for parameter, count in zip(parameters, there.tolist()):  # sync
            if count == 0:
                parameter.grad = None
