"""Histograms of weights, of tables that are sharded over ranks too, and of gradients.

R rows of a table, N sampled rows, V values, K bins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from runner.distributed.ranks import SINGLE_PROCESS, Ranks
from runner.distributed.shards import LocalShards, rows_in_shard
from runner.errors import ConfigError, nearest_hint
from runner.optim.dense import optimizer_parameters
from runner.reporting.trackers.tracker import Histogram
from runner.training.update.closure import needs_closure

HISTOGRAM_BINS = 64


def select_names(patterns: Sequence[str], names: Sequence[str], key: str) -> list[str]:
    """Return the names that a pattern matches as a whole.

    Args:
        key: the setting that holds the patterns, for messages.

    Raises:
        ConfigError: if a pattern is malformed or matches no name.
    """
    for pattern in patterns:
        try:
            if not any(re.fullmatch(pattern, name) for name in names):
                hint = nearest_hint(pattern, names)
                hint = hint or f"; a pattern is of whole names, such as {', '.join(names[:4])}"
                raise ConfigError(f"{key}: {pattern!r} matches nothing{hint}")
        except (re.error, TypeError) as error:
            raise ConfigError(f"{key}: pattern {pattern!r}: {error}") from error
    return [name for name in names if any(re.fullmatch(p, name) for p in patterns)]


def make_histogram(parts: Sequence[Tensor], ranks: Ranks = SINGLE_PROCESS) -> Histogram | None:
    """Return the histogram of all finite values, in equal bins from the least to the largest.

    Collective, if `ranks` are several, each of which holds some of the values. Synchronises.

    Returns:
        None if no value is finite.
    """
    values_V = torch.cat([part.detach().double().flatten() for part in parts])
    values_V = values_V[torch.isfinite(values_V)]
    bounds = [-values_V.min().item(), values_V.max().item()] if len(values_V) else [-torch.inf] * 2
    least, most = ranks.all_reduce_max_each(bounds)  # sync
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
    """Return the histogram of all weights in some rows of a table.

    Collective, if the table is sharded over ranks.
    """
    if not isinstance(weight_RD, LocalShards):
        return make_histogram([weight_RD.index_select(0, rows_N.to(weight_RD.device))])
    parts = [torch.empty(0, device=weight_RD.device)]  # a rank may hold no row of it
    for shard in weight_RD.shards:
        _, local_N = rows_in_shard(shard, rows_N.to(shard.tensor.device))
        parts.append(shard.tensor.index_select(0, local_N))
    return make_histogram(parts, ranks)


class LastGradients:
    """Holds the gradients that the last update was made with.

    They are summed over micro-batches and ranks, unscaled, clipped, and include penalties. A
    skipped update has none. A hook on an optimizer's step costs a fraction of a millisecond.
    """

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        """Hold the gradients of these optimizers from now on.

        Raises:
            ConfigError: if an optimizer evaluates gradients within its step.
        """
        for optimizer in optimizers:
            if needs_closure(optimizer):
                raise ConfigError(
                    f"gradient_histograms: {type(optimizer).__name__} evaluates gradients several "
                    "times an update, so that no single gradient belongs to it"
                )
        self._hooks = [o.register_step_pre_hook(self._keep) for o in optimizers]

    def _keep(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = optimizer_parameters(optimizer)
        self._held |= {id(p): p.grad for p in parameters if p.grad is not None}

    def take(self) -> dict[int, Tensor]:
        """Return the gradients by `id()` of their parameter, and let go of them."""
        values, self._held = self._held, {}
        return values

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._held, self._hooks = {}, []
