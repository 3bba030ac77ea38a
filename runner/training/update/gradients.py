"""Gradients of an update: adding those of parts, those at the boundary, and whether all are finite.

The boundary is the cut between the look-ups and the dense half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.batch import Embeddings


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add to the gradients of parameters, which take over the memory of what is given.

    Args:
        parameters: of the dense half.
        gradients: one for each of them; None adds nothing.
    """
    taken = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            parameter.grad += gradient
            continue
        # optimizers expect memory of the parameter's layout, and of its own
        if gradient.stride() != parameter.stride() or gradient.data_ptr() in taken:
            gradient = torch.empty_like(parameter).copy_(gradient)
        taken.add(gradient.data_ptr())
        parameter.grad = gradient


def boundary_gradients(
    embeddings: Embeddings, boundaries: Sequence[Embeddings]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the look-ups that were used, and the gradient of each over all micro-batches."""
    outputs, gradients = [], []
    num_row_lookups = len(embeddings.row_lookups())
    lookups = zip(embeddings.tensors(), *(b.tensors() for b in boundaries))
    for i, (output, *parts) in enumerate(lookups):
        if not output.requires_grad or all(p.grad is None for p in parts):
            continue
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parts]
        outputs.append(output)
        if len(grads) > 1:  # rows are appended; what all micro-batches share is summed
            grads = [torch.cat(grads) if i < num_row_lookups else torch.stack(grads).sum(0)]
        gradients.append(grads[0])
    return outputs, gradients


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no element is NaN or infinite. Synchronises: the host decides."""
    tensors = [t for t in tensors if t.numel()]
    if not tensors:
        return True
    if all(t.device.type == "cpu" for t in tensors):
        # A NaN or an infinity always shows in a sum, which reads the memory once; torch has no
        # vectorised infinity norm on CPU. Finite numbers may overflow a sum, so then each is read.
        if all(math.isfinite(t.sum().item()) for t in tensors):
            return True
        return all(bool(torch.isfinite(t).all()) for t in tensors)
    # one kernel for all; the largest magnitude keeps a NaN and cannot overflow, unlike a sum
    largest = torch.stack(torch._foreach_norm(tensors, float("inf")))
    return bool(torch.isfinite(largest).all())  # sync
