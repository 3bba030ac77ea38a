"""Gradient semantics: what a task may do to the model, and how an update reaches everything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from runner.batch import Embeddings
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
    parameters: list[nn.Parameter] = field(init=False)  # of the dense half, that train

    def __post_init__(self) -> None:
        self.parameters = [
            p for group in self.dense_optimizer.param_groups for p in group["params"]
        ]

    def autocast(self) -> AbstractContextManager[object]:
        if self.amp_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)

    def backward(self, loss: Tensor) -> None:
        """Adds to the gradients of the dense half and of the boundary; touches no table."""
        (self.loss_scale.scaled(loss) if self.loss_scale else loss).backward()

    def update(self, embeddings: Embeddings, boundaries: Sequence[Embeddings]) -> bool:
        """One update of all parameters from the gradients gathered so far, or of none.

        Returns: whether it was applied; False if any gradient is NaN or infinite.
        """
        outputs, gradients = _boundary_gradients(embeddings, boundaries)
        dense = [p.grad for p in self.parameters if p.grad is not None]
        if self.loss_scale:
            self.loss_scale.unscale([*dense, *gradients])
        applied = all_finite([*dense, *gradients])
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
    for output, *parts in zip(embeddings.tensors(), *(b.tensors() for b in boundaries)):
        if not output.requires_grad or all(p.grad is None for p in parts):
            continue
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parts]
        outputs.append(output)
        gradients.append(grads[0] if len(grads) == 1 else torch.cat(grads))
    return outputs, gradients


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no element is NaN or infinite. Synchronises: the decision is taken on the host."""
    tensors = [t for t in tensors if t.numel()]
    if not tensors:
        return True
    # No sum over a NaN or an infinity is finite, and a sum costs a fortieth of a largest magnitude
    # on CPU. Only a sum that is not finite may mean either, as large values can overflow it.
    sums = torch.stack([t.sum() for t in tensors])
    if torch.isfinite(sums).all():  # sync
        return True
    largest = torch.stack(torch._foreach_norm(tensors, float("inf")))
    return bool(torch.isfinite(largest).all())  # sync
