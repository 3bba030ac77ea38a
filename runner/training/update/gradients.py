"""Gradients of an update: adding those of parts, those at the boundary, and whether all are finite.

The boundary is the cut between the look-ups and the dense half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from runner.batch import Embeddings
from runner.embeddings.interface import Layout, feature_columns


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add to the gradients of parameters, which may take over the memory of `gradients`.

    Args:
        gradients: one for each of them; None adds nothing.
    """
    pointers = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            parameter.grad += gradient
            continue
        # optimizers expect memory of the parameter's layout, and of its own
        if gradient.stride() != parameter.stride() or gradient.data_ptr() in pointers:
            gradient = torch.empty_like(parameter).copy_(gradient)
        pointers.add(gradient.data_ptr())
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
        if len(grads) > 1:  # rows are concatenated; tensors shared by all micro-batches are summed
            grads = [torch.cat(grads) if i < num_row_lookups else torch.stack(grads).sum(0)]
        gradients.append(grads[0])
    return outputs, gradients


def drop_empty_lookups(
    embeddings: Embeddings, outputs: Sequence[Tensor], gradients: Sequence[Tensor], layout: Layout
) -> None:
    """Set gradients at look-ups without ids to 0, in place: no row gets them, nor may a norm.

    NaN and infinity stay, so that the update is skipped as it is without norms.

    Args:
        outputs: those that have a gradient.
        gradients: one for each of them.
    """
    if embeddings.ids is None:
        return
    lookups = embeddings.row_lookups()
    lengths_FS = embeddings.ids.lengths().view(len(layout.feature_order), -1)
    lengths_FB = lengths_FS[:, : len(lookups[0])]  # candidates follow, with one id each
    feature_of_E = _feature_of_column(layout, lengths_FB.device)
    is_empty_BE = (lengths_FB == 0).t().index_select(1, feature_of_E)
    masks = torch.split(is_empty_BE, [t.shape[1:].numel() for t in lookups], dim=1)
    mask_of = {id(lookup): mask for lookup, mask in zip(lookups, masks, strict=True)}
    for output, gradient in zip(outputs, gradients, strict=True):
        if id(output) in mask_of:
            gradient.mul_(~mask_of[id(output)].view_as(gradient))


@lru_cache(maxsize=8)
def _feature_of_column(layout: Layout, device: torch.device) -> Tensor:
    """Return [E]. Cached, because the host waits while a list is copied to a GPU."""
    columns = feature_columns(layout.tables, layout.feature_order)
    features = [f for f, c in enumerate(columns.values()) for _ in range(c.start, c.stop)]
    return torch.tensor(features, device=device)


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
