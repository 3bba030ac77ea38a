"""Clipping and norms of an update's gradients: dense half and tables by one rule.

A fused table has no gradient of its own to look at: its rows are updated inside the backward. What
stands for it is the gradient at the look-up, before it is summed by row: for each rank its rows of
[B, E], whose columns belong to tables. It is the same however the update is cut into micro-batches
or spread over ranks. B rows of the update on this rank, E width of all pooled embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from runner.distributed.ranks import Ranks
from runner.embeddings.interface import Layout
from runner.optim.param_groups import TABLE_PREFIX
from runner.optim.settings import ClipSettings

_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def clip_gradients(
    settings: ClipSettings,
    dense: Sequence[Tensor],
    boundary: Sequence[Tensor],
    layout: Layout,
    ranks: Ranks,
) -> None:
    """Collective. Clips in place, after unscaling and the sum over ranks. Does not synchronise.

    Args: dense: gradients, equal on all ranks. boundary: of this rank's look-ups: the pooled ones,
    then any others, each taken as one table. layout: whose columns the pooled ones are.
    """
    if not settings.tables:
        boundary = []
    if settings.value is not None:
        for gradient in (*dense, *boundary):
            gradient.clamp_(-settings.value, settings.value)
    if settings.parameter_norm is not None:
        for gradient, norm in zip(dense, _norms(dense)):
            gradient.mul_(_factor(settings.parameter_norm, norm))
        squares = boundary_squares(boundary, ranks)
        for gradient, squares_E in zip(boundary, squares):
            sums, table_of_E = _by_table(layout, squares_E)
            norms_E = sums.sqrt()[table_of_E]
            gradient.mul_(_factor(settings.parameter_norm, norms_E).to(gradient.dtype))
    if settings.global_norm is not None:
        factor = _factor(settings.global_norm, total_norm(dense, boundary_squares(boundary, ranks)))
        for gradient in (*dense, *boundary):
            gradient.mul_(factor.to(gradient.dtype))


def gradient_norms(
    dense: Mapping[str, Tensor],
    boundary: Sequence[Tensor],
    layout: Layout,
    ranks: Ranks,
    *,
    per_parameter: bool,
) -> dict[str, Tensor]:
    """Collective. The norm of all gradients together and, with `per_parameter`, of every parameter's and
    every table's look-ups. Does not synchronise."""
    squares = boundary_squares(boundary, ranks)
    found = {"gradient_norm": total_norm(list(dense.values()), squares)}
    if per_parameter:
        norms = _norms(list(dense.values()))
        found |= {f"gradient_norm/{name}": norm for name, norm in zip(dense, norms)}
        if squares and len(squares[0]) == sum(layout.widths):
            by_table = _by_table(layout, squares[0])[0].sqrt()
            names = [f"gradient_norm/{TABLE_PREFIX}{spec.name}" for spec in layout.tables]
            found |= dict(zip(names, by_table.unbind()))
    return found


def boundary_squares(boundary: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Collective. For each tensor the sum of squares of each column, over the rows of all ranks."""
    if not boundary:
        return []
    sums = [g.detach().double().square().flatten(0, -2).sum(0) for g in boundary]
    return list(ranks.all_reduce_sum(torch.cat(sums)).split([len(s) for s in sums]))


def total_norm(dense: Sequence[Tensor], boundary: Sequence[Tensor]) -> Tensor:
    """Of all gradients as one vector. boundary: sums of squares of their columns."""
    parts = [norm.double().square() for norm in _norms(dense)]
    parts += [squares_E.sum() for squares_E in boundary]
    if not parts:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(parts).sum().sqrt()


def _norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    return list(torch._foreach_norm(list(gradients))) if gradients else []


def _factor(bound: float, norm: Tensor) -> Tensor:
    return (bound / (norm + _EPS)).clamp(max=1.0)


@lru_cache(maxsize=8)
def _table_of(tables: Layout, width: int, device: torch.device) -> Tensor:
    """[E]: the place among `tables` that each pooled column belongs to; else all are of one.

    Kept: a list goes to a GPU by a copy that the host waits for.
    """
    place = {name: i for i, spec in enumerate(tables.tables) for name in spec.features}
    widths = {name: spec.dim for spec in tables.tables for name in spec.features}
    columns = [place[name] for name in tables.feature_order for _ in range(widths[name])]
    if len(columns) != width:
        return torch.zeros(width, dtype=torch.int64, device=device)
    return torch.tensor(columns, device=device)


def _by_table(tables: Layout, squares_E: Tensor) -> tuple[Tensor, Tensor]:
    """[number of tables]: the sum over each table's columns; [E]: which table a column is of."""
    table_of_E = _table_of(tables, len(squares_E), squares_E.device)
    sums = squares_E.new_zeros(len(tables.tables)).index_add_(0, table_of_E, squares_E)
    return sums, table_of_E
