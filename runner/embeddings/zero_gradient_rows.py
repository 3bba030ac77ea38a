"""Rows without a gradient under LARS and LAMB, for which FBGEMM's CUDA kernels divide zero by zero.

Their step is scaled by |w| / |g|, and by |w| / |d| with d Adam's direction. Both norms are 0 for a
row that only examples of weight 0 have looked up: it would be NaN from then on, and every example
with its id. Here it gets what the update rules on CPU say: a scale of 0.
V ids of a look-up, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runner.optim.settings import SparseSettings

NORM_SCALED_KINDS = ("lars_sgd", "lamb", "partial_rowwise_lamb")


@dataclass(frozen=True)
class _Before:
    """Rows of a table as they are before an update."""

    ids_V: Tensor
    weight: Tensor  # the live table
    weight_VD: Tensor
    momentum: Tensor
    momentum_VD: Tensor


def protect_zero_gradient_rows(kernel: Any, settings: SparseSettings) -> None:
    """From now on every update by FBGEMM's module leaves rows finite that were. In place."""
    if settings.kind not in NORM_SCALED_KINDS:
        return
    views: list[tuple[Tensor, Tensor]] = []  # taken once: FBGEMM asks the GPU where each begins

    def after_look_up(
        module: nn.Module, args: Sequence[Any], named: Mapping[str, Any], pooled_BE: Tensor
    ) -> None:
        if pooled_BE.grad_fn is not None:
            ids_V = named["indices"] if "indices" in named else args[0]
            offsets = named["offsets"] if "offsets" in named else args[1]
            if not views:
                views.extend(_views(module))
            before = _rows(kernel.feature_table_map, views, ids_V, offsets)
            # called when the node's backward, which updates the tables, is through
            pooled_BE.grad_fn.register_hook(lambda *_: _restore_broken_rows(before, settings))

    kernel.register_forward_hook(after_look_up, with_kwargs=True)


def _views(kernel: Any) -> list[tuple[Tensor, Tensor]]:
    """Each table's weights and first moment, live."""
    weights, states = kernel.split_embedding_weights(), kernel.split_optimizer_states()
    return [(w.detach(), moments[0].detach()) for w, moments in zip(weights, states, strict=True)]


def _rows(
    table_of: Sequence[int], views: Sequence[tuple[Tensor, Tensor]], ids_V: Tensor, offsets: Tensor
) -> list[_Before]:
    batch_size = (len(offsets) - 1) // len(table_of)
    if batch_size == 0:
        return []
    bounds = offsets[::batch_size].tolist()  # sync
    of_table: dict[int, list[Tensor]] = {}
    for table, start, stop in zip(table_of, bounds, bounds[1:]):
        of_table.setdefault(table, []).append(ids_V[start:stop])
    found = []
    for table, ids in of_table.items():
        ids_V = torch.cat(ids).long()
        weight, momentum = views[table]
        weight_VD, momentum_VD = (t.index_select(0, ids_V) for t in views[table])
        found.append(_Before(ids_V, weight, weight_VD, momentum, momentum_VD))
    return found


@torch.no_grad()
def _restore_broken_rows(before: Sequence[_Before], settings: SparseSettings) -> None:
    for rows in before:
        now_VD = rows.weight.index_select(0, rows.ids_V)
        broken_VD, still_VD = now_VD.isnan(), rows.weight_VD
        if settings.kind == "lars_sgd":  # what it had gathered still moves it; LAMB's is 0
            momentum_VD = rows.momentum_VD * settings.momentum
            still_VD = still_VD - momentum_VD
            gathered_VD = rows.momentum.index_select(0, rows.ids_V)
            gathered_VD = torch.where(broken_VD, momentum_VD, gathered_VD)
            rows.momentum.index_copy_(0, rows.ids_V, gathered_VD)
        # an id that comes twice is written twice, the same each time
        rows.weight.index_copy_(0, rows.ids_V, torch.where(broken_VD, still_VD, now_VD))
