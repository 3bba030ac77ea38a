"""Gradients of parameters that every rank has a copy of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from runner.distributed.ranks import Ranks


def all_reduce_gradients(
    parameters: Sequence[nn.Parameter], ranks: Ranks, *, is_finite: bool = True
) -> bool:
    """Collective. Every gradient becomes its sum over ranks, in one exchange.

    A parameter without a gradient on some ranks gets the sum of the others'; without one on any,
    none. Equal bits on all ranks, so that copies of the parameters stay equal.
    Args: is_finite: what this rank says of what only it can see; it rides along.
    Returns: whether all ranks say so.
    """
    if not parameters:
        return ranks.all_reduce_max(not is_finite) == 0
    missing = [p for p in parameters if p.grad is None]
    for parameter in missing:
        parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    absent = {id(p) for p in missing}
    counts = torch.tensor([float(not is_finite), *(float(id(p) not in absent) for p in parameters)])
    flat = torch.cat([*(g.flatten().float() for g in gradients), counts.to(gradients[0].device)])
    ranks.all_reduce_sum(flat)
    *sums, counts = flat.split([*(g.numel() for g in gradients), len(counts)])
    for gradient, summed in zip(gradients, sums):
        gradient.copy_(summed.view_as(gradient))
    unsound, *there = counts.tolist()  # sync
    for parameter, count in zip(parameters, there):
        if count == 0:
            parameter.grad = None
    return unsound == 0
