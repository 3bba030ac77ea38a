"""Tables over ranks by our own exchange, where TorchRec has no exact implementation.

It serves optimizers for which FBGEMM has no CPU kernel, and replicated tables, which TorchRec would
give to the dense optimizer. Each rank updates its rows once per update, from the ids and gradients
of all ranks in order of ranks, so that the sums equal those of one process with all rows.
B batch of this rank, N batches of all ranks one after another, F features, W ranks, E width of all
pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.factory import build_uninitialized_tables
from runner.embeddings.interface import Layout, Placement, TableSpec, WrappedTables
from runner.embeddings.row_exchange import RowExchange, RowRange
from runner.optim.settings import SparseSettings


class ReplicatedTables(WrappedTables):
    """All tables on every rank.

    Collective: the constructor, and the backward of a look-up.
    """

    def __init__(
        self, layout: Layout, settings: SparseSettings, ranks: Ranks, *, device: torch.device
    ) -> None:
        engine = build_uninitialized_tables(
            _sum_pooled(layout.tables), layout.feature_order, settings, device
        )
        super().__init__(engine, layout, settings, device=device)
        self._ranks = ranks
        self._anchor = torch.zeros(0, requires_grad=True, device=device)

    def placement(self) -> list[Placement]:
        return [
            Placement(t.name, "data_parallel", rank, 0, t.num_rows, 0, t.dim)
            for t in self.layout.tables
            for rank in range(self._ranks.world_size)
        ]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled_BE: Tensor = _ReplicatedLookup.apply(  # type: ignore[no-untyped-call]
            self._anchor, self, kjt
        )
        return self._apply_mean_pooling(pooled_BE, kjt)


class _ReplicatedLookup(torch.autograd.Function):
    """A look-up of this rank's batch, whose backward updates the copy from all ranks' batches."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tables: ReplicatedTables, kjt: KeyedJaggedTensor
    ) -> Tensor:
        ctx.tables, ctx.kjt = tables, kjt
        pooled_BE: Tensor = tables._engine(kjt)
        return pooled_BE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:
        ranks = ctx.tables._ranks
        all_ids, sizes = all_gather_ids(ctx.kjt, ranks)
        grads_NE = torch.cat(ranks.all_gather_rows(grad_BE, sizes))
        with torch.enable_grad():
            pooled_NE = ctx.tables._engine(all_ids)
        pooled_NE.backward(grads_NE)  # steps the tables
        return None, None, None


class RowShardedTables(WrappedTables):
    """Tables whose rows are split over the ranks.

    Collective: a look-up and its backward.
    """

    def __init__(
        self,
        layout: Layout,
        settings: SparseSettings,
        ranks: Ranks,
        *,
        device: torch.device,
        plans: Mapping[str, str],
        row_ranges: Mapping[str, Sequence[RowRange]],
        scratch: Path | None = None,
    ) -> None:
        """Build this rank's rows, with their weights not yet set.

        Args:
            plans: the plan by table, for `placement`.
            row_ranges: by table, the rows of every rank, in order and without gaps.
            scratch: a folder for files with the rows; None: they are in memory.
        """
        local = {name: ranges[ranks.rank] for name, ranges in row_ranges.items()}
        # a rank without rows of a table stores an unused one, since engines need at least one
        local_specs = [
            replace(
                t, num_rows=max(1, local[t.name][1] - local[t.name][0]), first_row=local[t.name][0]
            )
            for t in _sum_pooled(layout.tables)
        ]
        engine = build_uninitialized_tables(
            local_specs, layout.feature_order, settings, device, scratch
        )
        super().__init__(engine, layout, settings, device=device)
        self._ranks, self._plans, self._row_ranges = ranks, plans, row_ranges
        self._device = device
        table_of = {name: t for t in layout.tables for name in t.features}
        tables = [table_of[name] for name in layout.feature_order]
        ranges, widths = [row_ranges[t.name] for t in tables], [t.dim for t in tables]
        self._exchange = RowExchange(ranks, ranges, widths, device)
        self._anchor = torch.zeros(0, requires_grad=True, device=device)

    def state(self) -> dict[str, Tensor]:
        sizes = {t.name: t.num_rows for t in self.layout.tables}
        tensors: dict[str, Tensor] = {}
        for key, tensor in self._engine.state().items():
            table = key.rpartition("/")[0]
            start, stop = self._row_ranges[table][self._ranks.rank]
            shape = (sizes[table], *tensor.shape[1:])
            shard = LocalShard(tensor[: stop - start], (start, *(0 for _ in tensor.shape[1:])))
            tensors[key] = LocalShards(shape, [shard], tensor.dtype, self._device)
        return tensors

    def placement(self) -> list[Placement]:
        return [
            Placement(t.name, self._plans[t.name], rank, start, stop - start, 0, t.dim)
            for t in self.layout.tables
            for rank, (start, stop) in enumerate(self._row_ranges[t.name])
            if stop > start
        ]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled_BE: Tensor = _RowShardedLookup.apply(  # type: ignore[no-untyped-call]
            self._anchor, self, kjt
        )
        return self._apply_mean_pooling(pooled_BE, kjt)


class _RowShardedLookup(torch.autograd.Function):
    """A look-up in which each rank pools its rows for all batches; each batch gets the sum."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tables: RowShardedTables, kjt: KeyedJaggedTensor
    ) -> Tensor:
        local_ids, sizes = tables._exchange.send_ids(kjt)
        with torch.enable_grad():
            pooled_NE = tables._engine(local_ids)
        ctx.tables, ctx.pooled_NE, ctx.sizes = tables, pooled_NE, sizes
        return tables._exchange.return_pooled(pooled_NE.detach(), sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:
        grads_NE = ctx.tables._exchange.send_gradients(grad_BE, ctx.sizes)
        ctx.pooled_NE.backward(grads_NE)  # updates the rows of this rank
        return None, None, None


def all_gather_ids(kjt: KeyedJaggedTensor, ranks: Ranks) -> tuple[KeyedJaggedTensor, list[int]]:
    """Join the batches of all ranks into one, in the order of the ranks.

    Collective.

    Returns:
        The joined batch, and the number of its rows from each rank.
    """
    sent_FB = kjt.lengths().to(torch.int32)
    lengths_FB = [t.view(len(kjt.keys()), -1) for t in ranks.all_gather_rows(sent_FB)]
    per_feature = [t.sum(1).tolist() for t in lengths_FB]  # sync
    num_ids = [sum(of_rank) for of_rank in per_feature]

    def gather(local_V: Tensor) -> Tensor:
        gathered = ranks.all_gather_rows(local_V, num_ids)
        by_rank = [torch.split(v, n) for v, n in zip(gathered, per_feature)]
        return torch.cat([features[f] for f in range(len(kjt.keys())) for features in by_rank])

    weights_V = kjt.weights_or_none()
    joined = KeyedJaggedTensor(
        keys=kjt.keys(),
        values=gather(kjt.values()),
        weights=None if weights_V is None else gather(weights_V),
        lengths=torch.cat(lengths_FB, dim=1).flatten().to(kjt.lengths().dtype),
    )
    return joined, [t.shape[1] for t in lengths_FB]


def _sum_pooled(tables: Sequence[TableSpec]) -> list[TableSpec]:
    """Let the engine pool by sum; `_apply_mean_pooling` of the tables around it makes means."""
    return [replace(t, pooling="sum") for t in tables]
