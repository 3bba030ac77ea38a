"""All-reduce of the gradients of parameters that are replicated on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from runner.distributed.ranks import Ranks


def all_reduce_gradients(
    parameters: Sequence[nn.Parameter], ranks: Ranks, *, is_finite: bool = True
) -> bool:
    """Collective. Sum every gradient over all ranks, in one exchange.

    A parameter without a gradient on some ranks gets the sum of the others', and none
    if no rank has one. All ranks get the same bits, so that copies of the parameters stay equal.

    Args:
        parameters: the same ones in the same order on every rank.
        is_finite: this rank's flag, sent in the same exchange.

    Returns:
        Whether the flags of all ranks are true.
    """
    if not parameters:
        return ranks.all_reduce_max(not is_finite) == 0
    missing = {id(p) for p in parameters if p.grad is None}
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    has_gradient = [float(id(p) not in missing) for p in parameters]
    counts = torch.tensor([float(not is_finite), *has_gradient])
    flat = torch.cat([*(g.flatten().float() for g in gradients), counts.to(gradients[0].device)])
    ranks.all_reduce_sum(flat)
    *sums, counts = torch.split(flat, [*(g.numel() for g in gradients), len(counts)])
    for gradient, summed in zip(gradients, sums):
        gradient.copy_(summed.view_as(gradient))
    num_non_finite, *num_gradients = counts.tolist()  # sync
    for parameter, count in zip(parameters, num_gradients):
        if count == 0:
            parameter.grad = None
    return bool(num_non_finite == 0)
