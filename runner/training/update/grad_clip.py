"""Clips and measures the gradients of an update: those of the dense half and of the tables.

A fused table never has a gradient of its own, since its rows are updated inside the backward. The
gradient at its look-up, before it is summed by row, takes its place: each rank has its rows of
[B, E], whose columns belong to tables. It is the same however the update is cut into micro-batches
or shared by ranks. The equal columns of a first-order weight count as the one that they stand for.
B rows of the update on this rank, E width of all pooled embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from runner.distributed.ranks import Ranks
from runner.embeddings.interface import Layout, feature_columns
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
    """Clip gradients in place, after they are unscaled and summed over ranks.

    Collective. Does not synchronise.

    Args:
        dense: gradients of the dense half, equal on all ranks.
        boundary: gradients at this rank's look-ups: the pooled ones first, then any others, each
            of which counts as one table.
        layout: the tables of the pooled columns.
    """
    if not settings.tables:
        boundary = []
    if settings.value is not None:
        for gradient in (*dense, *boundary):
            gradient.clamp_(-settings.value, settings.value)
    if settings.parameter_norm is not None:
        for gradient, norm in zip(dense, _norms(dense)):
            gradient.mul_(_factor(settings.parameter_norm, norm))
        squares = boundary_squares(boundary, layout, ranks)
        for gradient, squares_E in zip(boundary, squares):
            sums, table_of_E = _sum_by_table(layout, squares_E)
            norms_E = sums.sqrt()[table_of_E]
            gradient.mul_(_factor(settings.parameter_norm, norms_E).to(gradient.dtype))
    if settings.global_norm is not None:
        factor = _factor(
            settings.global_norm, _total_norm(dense, boundary_squares(boundary, layout, ranks))
        )
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
    """Return the norm of all gradients together, and of each one by its name.

    Collective. Does not synchronise.

    Args:
        dense: gradients of the dense half by parameter, equal on all ranks.
        boundary: gradients at this rank's look-ups.
        layout: the tables of the pooled columns.
        per_parameter: whether each parameter and each table that is pooled gets a norm too.
    """
    squares = boundary_squares(boundary, layout, ranks)
    named_norms = {"gradient_norm": _total_norm(list(dense.values()), squares)}
    if per_parameter:
        norms = _norms(list(dense.values()))
        named_norms |= {f"gradient_norm/{name}": norm for name, norm in zip(dense, norms)}
        if boundary and boundary[0].dim() == 2:  # a sequence has a dimension for its places, too
            by_table = _sum_by_table(layout, squares[0])[0].sqrt()
            for table in dict.fromkeys(_tables_of_columns(layout, len(squares[0]))):
                name = f"gradient_norm/{TABLE_PREFIX}{layout.tables[table].name}"
                named_norms[name] = by_table[table]
    return named_norms


def boundary_squares(boundary: Sequence[Tensor], layout: Layout, ranks: Ranks) -> list[Tensor]:
    """Return for each tensor the sum of squares of each column, over the rows of all ranks.

    Collective. A first-order weight has its sum in shares, one for each of its columns.
    """
    if not boundary:
        return []
    sums = [g.detach().double().square().flatten(0, -2).sum(0) for g in boundary]
    squares = torch.split(ranks.all_reduce_sum(torch.cat(sums)), [len(s) for s in sums])
    return [s * _column_shares(layout, len(s), s.device) for s in squares]


def _total_norm(dense: Sequence[Tensor], boundary: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients as one vector, from dense ones and `boundary_squares`."""
    parts = [norm.double().square() for norm in _norms(dense)]
    parts += [squares_E.sum() for squares_E in boundary]
    if not parts:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(parts).sum().sqrt()


def _norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    return list(torch._foreach_norm(list(gradients))) if gradients else []


def _factor(bound: float, norm: Tensor) -> Tensor:
    return (bound / (norm + _EPS)).clamp(max=1.0)


def _tables_of_columns(layout: Layout, width: int) -> list[int]:
    """Return the index of the table of each pooled column; empty for a look-up of another width.

    Features that are pooled stand before those for the places of sequences, so the first columns
    of the layout are theirs.
    """
    index = {name: i for i, spec in enumerate(layout.tables) for name in spec.features}
    columns = feature_columns(layout.tables, layout.feature_order)
    pooled = {name: c for name, c in columns.items() if c.stop <= width}
    tables = [index[name] for name, c in pooled.items() for _ in range(c.start, c.stop)]
    return tables if len(tables) == width else []


@lru_cache(maxsize=8)
def _table_of_column(layout: Layout, width: int, device: torch.device) -> Tensor:
    """Return [E]: `_tables_of_columns`, or 0 for each column of a look-up of another width.

    Cached, because the host waits while a list is copied to a GPU.
    """
    return torch.tensor(_tables_of_columns(layout, width) or [0] * width, device=device)


@lru_cache(maxsize=8)
def _column_shares(layout: Layout, width: int, device: torch.device) -> Tensor:
    """Return [E], what each column counts for. Cached as `_table_of_column` is."""
    tables = _tables_of_columns(layout, width)
    shares = [1 / layout.tables[t].equal_columns for t in tables]
    return torch.tensor(shares or [1.0] * width, device=device)


def _sum_by_table(layout: Layout, squares_E: Tensor) -> tuple[Tensor, Tensor]:
    """Return [number of tables], the sums over their columns, and [E], the table of a column."""
    table_of_E = _table_of_column(layout, len(squares_E), squares_E.device)
    sums = squares_E.new_zeros(len(layout.tables)).index_add_(0, table_of_E, squares_E)
    return sums, table_of_E
