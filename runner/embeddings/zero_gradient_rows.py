"""Rows without a gradient under LARS and LAMB, where FBGEMM's CUDA kernels divide zero by zero.

LARS scales a step by |w| / |g|, and LAMB by |w| / |d| with d Adam's direction. Both divisors are 0
for a row that only examples of weight 0 have looked up. The row would be NaN from then on, and so
would be every example with its id. Here the row gets a scale of 0, as in the update rules on CPU.
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
class _RowSnapshot:
    """Copies of the looked-up rows of one table before an update."""

    ids_V: Tensor
    weight: Tensor  # the live table
    weight_VD: Tensor
    momentum: Tensor  # the live first moment
    momentum_VD: Tensor


def protect_zero_gradient_rows(kernel: Any, settings: SparseSettings) -> None:
    """Hook FBGEMM's module so that its updates leave finite rows finite.

    Args:
        kernel: the module, which is changed in place.
        settings: its optimizer; only the kinds in `NORM_SCALED_KINDS` need a hook.
    """
    if settings.kind not in NORM_SCALED_KINDS:
        return
    views: list[tuple[Tensor, Tensor]] = []  # made once: FBGEMM reads their offsets from the GPU

    def after_look_up(
        module: nn.Module, args: Sequence[Any], named: Mapping[str, Any], pooled_BE: Tensor
    ) -> None:
        if pooled_BE.grad_fn is not None:
            ids_V = named["indices"] if "indices" in named else args[0]
            offsets = named["offsets"] if "offsets" in named else args[1]
            if not views:
                views.extend(_table_views(module))
            snapshots = _snapshot_rows(kernel.feature_table_map, views, ids_V, offsets)
            # called after the node's backward, which updates the tables
            pooled_BE.grad_fn.register_hook(lambda *_: _restore_broken_rows(snapshots, settings))

    kernel.register_forward_hook(after_look_up, with_kwargs=True)


def _table_views(kernel: Any) -> list[tuple[Tensor, Tensor]]:
    """Return each table's live weights and first moment."""
    weights, states = kernel.split_embedding_weights(), kernel.split_optimizer_states()
    return [(w.detach(), moments[0].detach()) for w, moments in zip(weights, states, strict=True)]


def _snapshot_rows(
    table_of: Sequence[int], views: Sequence[tuple[Tensor, Tensor]], ids_V: Tensor, offsets: Tensor
) -> list[_RowSnapshot]:
    batch_size = (len(offsets) - 1) // len(table_of)
    if batch_size == 0:
        return []
    bounds = offsets[::batch_size].tolist()  # sync
    by_table: dict[int, list[Tensor]] = {}
    for table, start, stop in zip(table_of, bounds, bounds[1:]):
        by_table.setdefault(table, []).append(ids_V[start:stop])
    snapshots = []
    for table, ids in by_table.items():
        ids_V = torch.cat(ids).long()
        weight, momentum = views[table]
        weight_VD, momentum_VD = (t.index_select(0, ids_V) for t in views[table])
        snapshots.append(_RowSnapshot(ids_V, weight, weight_VD, momentum, momentum_VD))
    return snapshots


@torch.no_grad()
def _restore_broken_rows(snapshots: Sequence[_RowSnapshot], settings: SparseSettings) -> None:
    for rows in snapshots:
        updated_VD = rows.weight.index_select(0, rows.ids_V)
        broken_VD, expected_VD = updated_VD.isnan(), rows.weight_VD
        if settings.kind == "lars_sgd":  # its momentum moves the row; that of LAMB is 0
            momentum_VD = rows.momentum_VD * settings.momentum
            expected_VD = expected_VD - momentum_VD
            updated_momentum_VD = rows.momentum.index_select(0, rows.ids_V)
            updated_momentum_VD = torch.where(broken_VD, momentum_VD, updated_momentum_VD)
            rows.momentum.index_copy_(0, rows.ids_V, updated_momentum_VD)
        # an id that occurs twice is written twice, with the same values
        rows.weight.index_copy_(0, rows.ids_V, torch.where(broken_VD, expected_VD, updated_VD))
