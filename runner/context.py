"""Gradient semantics: what a task may do to the model, and how an update reaches everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings
from runner.dist.gradients import sum_over_ranks
from runner.dist.ranks import Ranks, this_process
from runner.layers.recommender import Recommender
from runner.losses import Loss
from runner.optim.tables import Tables
from runner.precision import LossScale


@dataclass
class Context:
    """What `train_step` works with: the parts of the job that an update touches."""

    model: Recommender
    loss: Loss
    tables: Tables
    dense_optimizer: torch.optim.Optimizer
    device: torch.device
    micro_batch_size: int  # rows
    amp_dtype: torch.dtype | None = None  # None: no autocast
    loss_scale: LossScale | None = None  # fp16 only
    ranks: Ranks = field(default_factory=this_process)
    parameters: list[nn.Parameter] = field(init=False)  # of the dense half, that train

    def __post_init__(self) -> None:
        self.parameters = [
            p for group in self.dense_optimizer.param_groups for p in group["params"]
        ]

    def autocast(self) -> AbstractContextManager[object]:
        if self.amp_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)

    def total_weight(self, batch: Batch) -> Tensor:
        """Collective. Of the rows of an update, over all its micro-batches and ranks; above 0.

        A loss divided by it makes gradients of micro-batches and ranks add up to the one of a
        single batch, however many rows each of them has.
        """
        weight = self.ranks.add(batch.weights_B.sum())
        return weight.clamp_min(torch.finfo(torch.float32).tiny)

    def backward(self, loss: Tensor) -> None:
        """Adds to the gradients of the dense half and of the boundary; touches no table."""
        (self.loss_scale.scaled(loss) if self.loss_scale else loss).backward()

    def update(self, embeddings: Embeddings, boundaries: Sequence[Embeddings]) -> bool:
        """Collective. One update of all parameters from the gradients gathered so far, or of none.

        Returns: whether it was applied; False if any gradient is NaN or infinite.
        """
        outputs, gradients = _boundary_gradients(embeddings, boundaries)
        dense = [p.grad for p in self.parameters if p.grad is not None]
        if self.loss_scale:
            self.loss_scale.unscale([*dense, *gradients])
        if self.ranks.several:
            sum_over_ranks(self.parameters, self.ranks)
            dense = [p.grad for p in self.parameters if p.grad is not None]
        applied = all_finite([*dense, *gradients])
        if self.ranks.several:  # the dense gradients are equal now, those at the boundary are not
            applied = self.ranks.largest(not applied) == 0
        if applied:
            if outputs:
                torch.autograd.backward(outputs, gradients)  # fused tables step in here
            self.dense_optimizer.step()
        self.dense_optimizer.zero_grad(set_to_none=True)
        if self.loss_scale:
            self.loss_scale.adapt(applied)
        return applied


def _boundary_gradients(
    embeddings: Embeddings, boundaries: Sequence[Embeddings]
) -> tuple[list[Tensor], list[Tensor]]:
    """The look-ups that were used, and the gradient of each over all its micro-batches."""
    outputs, gradients = [], []
    num_by_row = len(embeddings.by_row())
    every = zip(embeddings.tensors(), *(b.tensors() for b in boundaries))
    for place, (output, *parts) in enumerate(every):
        if not output.requires_grad or all(p.grad is None for p in parts):
            continue
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parts]
        outputs.append(output)
        if len(grads) > 1:  # rows stand one after another, what is shared adds up
            grads = [torch.cat(grads) if place < num_by_row else torch.stack(grads).sum(0)]
        gradients.append(grads[0])
    return outputs, gradients


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no element is NaN or infinite. Synchronises: the decision is taken on the host."""
    tensors = [t for t in tensors if t.numel()]
    if not tensors:
        return True
    if all(t.device.type == "cpu" for t in tensors):
        # A NaN or an infinity always shows in a sum, at the cost of reading the memory once; torch
        # has no vectorised infinity norm on CPU. Finite numbers may overflow a sum: then we look.
        if all(math.isfinite(t.sum().item()) for t in tensors):
            return True
        return all(bool(torch.isfinite(t).all()) for t in tensors)
    # one kernel for all; the largest magnitude keeps a NaN and cannot overflow, unlike a sum
    largest = torch.stack(torch._foreach_norm(tensors, float("inf")))
    return bool(torch.isfinite(largest).all())  # sync
