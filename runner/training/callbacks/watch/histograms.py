"""Histograms of weights, also of tables that are spread over ranks, and of gradients.

R rows of a table, N of them that are looked at, V values, K bins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from runner.distributed.ranks import SINGLE_PROCESS, Ranks
from runner.distributed.shards import LocalShards
from runner.errors import ConfigError, nearest_hint
from runner.reporting.trackers.histogram import Histogram
from runner.training.update.closure import needs_closure

HISTOGRAM_BINS = 64


def select_names(patterns: Sequence[str], names: Sequence[str], key: str) -> list[str]:
    """Names that a pattern matches as a whole. Raises: ConfigError for one that matches none."""
    for pattern in patterns:
        try:
            if not any(re.fullmatch(pattern, name) for name in names):
                raise ConfigError(
                    f"{key}: {pattern!r} matches nothing{nearest_hint(pattern, names)}"
                )
        except (re.error, TypeError) as error:
            raise ConfigError(f"{key}: pattern {pattern!r}: {error}") from error
    return [name for name in names if any(re.fullmatch(p, name) for p in patterns)]


def make_histogram(parts: Sequence[Tensor], ranks: Ranks = SINGLE_PROCESS) -> Histogram | None:
    """Collective, with `ranks` of several, each of which has some of the values.

    Equal bins from the least to the largest value; None if no value is finite. Synchronises.
    """
    values_V = torch.cat([part.detach().double().flatten() for part in parts])
    values_V = values_V[torch.isfinite(values_V)]
    here = [-values_V.min().item(), values_V.max().item()] if len(values_V) else [-torch.inf] * 2
    least, most = ranks.all_reduce_max_each(here)  # sync
    low, high = -least, most
    if low > high:
        return None
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges_K = torch.linspace(
        low, high, HISTOGRAM_BINS + 1, dtype=torch.float64, device=values_V.device
    )
    bins_V = torch.bucketize(values_V, edges_K[1:-1], right=True)
    sums = torch.stack((values_V.sum(), values_V.square().sum()))
    # one exchange: counts are whole numbers, which doubles hold exactly
    counted = torch.cat((torch.bincount(bins_V, minlength=HISTOGRAM_BINS).double(), sums))
    *counts, total, squares = ranks.all_reduce_sum(counted).tolist()  # sync
    return Histogram(tuple(edges_K.tolist()), tuple(map(int, counts)), total, squares)


def make_row_histogram(weight_RD: Tensor, rows_N: Tensor, ranks: Ranks) -> Histogram | None:
    """Collective, where the table is spread over ranks. Of all weights in some of its rows."""
    if not isinstance(weight_RD, LocalShards):
        return make_histogram([weight_RD.index_select(0, rows_N.to(weight_RD.device))])
    parts = [torch.empty(0, device=weight_RD.device)]  # a rank may hold nothing of it
    for piece in weight_RD.shards:
        own_N = rows_N.to(piece.tensor.device) - piece.offset[0]
        own_N = own_N[(own_N >= 0) & (own_N < len(piece.tensor))]
        parts.append(piece.tensor.index_select(0, own_N))
    return make_histogram(parts, ranks)


class LastGradients:
    """The gradients that the last update went by: summed over micro-batches and ranks, unscaled,
    with penalties, clipped. Of an update that was skipped there are none.

    Optimizers that are listened to step as torch has them, a fraction of a millisecond slower.
    """

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        """Raises: ConfigError for one that evaluates gradients within its step."""
        for optimizer in optimizers:
            if needs_closure(optimizer):
                raise ConfigError(
                    f"gradient_histograms: {type(optimizer).__name__} evaluates gradients several "
                    "times an update; there is not one that it goes by"
                )
        self._hooks = [o.register_step_pre_hook(self._keep) for o in optimizers]

    def _keep(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        owned = (p for group in optimizer.param_groups for p in group["params"])
        self._held |= {id(p): p.grad for p in owned if p.grad is not None}

    def take(self) -> dict[int, Tensor]:
        """By the id of their parameter; they are let go."""
        held, self._held = self._held, {}
        return held

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._held, self._hooks = {}, []
