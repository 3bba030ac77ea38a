"""Tables over ranks by our own exchange, for what TorchRec cannot do exactly.

It serves the optimizers that have no kernel of FBGEMM's on CPU, and copies of a table on every
rank, which TorchRec would hand to the dense optimizer. Each rank steps its rows once an update,
from the ids and gradients of all ranks in their order: the sums of one process with all the rows.
B batch of this rank, N batches of all ranks side by side, F features, E width of all pooled
embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.factory import build_uninitialized_tables
from runner.embeddings.interface import EmbeddingTables, Layout, Placement, TableSpec
from runner.optim.settings import SparseSettings

RowRange = tuple[int, int]  # rows [start, stop) of a table


class ReplicatedTables(EmbeddingTables):
    """All tables on every rank. Collective: making it, and the backward of a look-up."""

    def __init__(
        self, layout: Layout, settings: SparseSettings, ranks: Ranks, *, device: torch.device
    ) -> None:
        super().__init__(layout, settings, device)
        self._ranks = ranks
        self._engine = build_uninitialized_tables(
            _summed(layout.tables), layout.feature_order, settings, device
        )
        self._anchor = torch.zeros(0, requires_grad=True, device=device)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._engine.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        return self._engine.state()

    def placement(self) -> list[Placement]:
        return [
            Placement(t.name, "data_parallel", rank, 0, t.num_rows, 0, t.dim)
            for t in self.layout.tables
            for rank in range(self._ranks.world_size)
        ]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        lengths_FB = kjt.lengths().view(len(self._keys), -1)
        return self._apply_mean_pooling(
            _ReplicatedLookup.apply(self._anchor, self, kjt), lengths_FB
        )


class _ReplicatedLookup(torch.autograd.Function):
    """A look-up of this rank's batch; its backward updates the copy from the batches of all."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tables: ReplicatedTables, kjt: KeyedJaggedTensor
    ) -> Tensor:
        ctx.tables, ctx.kjt = tables, kjt
        return tables._engine(kjt)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        ranks = ctx.tables._ranks
        grads_NE = torch.cat(ranks.all_gather_rows(grad_BE.contiguous()))
        everyone = all_gather_ids(ctx.kjt, ranks)
        with torch.enable_grad():
            pooled_NE = ctx.tables._engine(everyone)
        pooled_NE.backward(grads_NE)  # steps the tables
        return None, None, None


class RowShardedTables(EmbeddingTables):
    """Spans of each table's rows on the ranks. Collective: a look-up and its backward.

    Args: spans: for each table, the rows of every rank, in order and without gaps.
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
    ) -> None:
        super().__init__(layout, settings, device)
        self._ranks, self._plans, self._spans = ranks, plans, row_ranges
        self._device = device
        mine = {name: all_spans[ranks.rank] for name, all_spans in row_ranges.items()}
        # a rank without a row of a table keeps one that is never read: engines want at least one
        own = [
            replace(t, num_rows=max(1, mine[t.name][1] - mine[t.name][0]))
            for t in _summed(layout.tables)
        ]
        self._engine = build_uninitialized_tables(own, layout.feature_order, settings, device)
        table_of = {name: t.name for t in layout.tables for name in t.features}
        bounds = [mine[table_of[name]] for name in layout.feature_order]
        self._low_F, self._high_F = torch.tensor(bounds, device=device).unbind(1)
        self._anchor = torch.zeros(0, requires_grad=True, device=device)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._engine.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        sizes = {t.name: t.num_rows for t in self.layout.tables}
        tensors: dict[str, Tensor] = {}
        for key, tensor in self._engine.state().items():
            table = key.rpartition("/")[0]
            start, stop = self._spans[table][self._ranks.rank]
            shape = (sizes[table], *tensor.shape[1:])
            piece = LocalShard(tensor[: stop - start], (start, *(0 for _ in tensor.shape[1:])))
            tensors[key] = LocalShards(shape, [piece], tensor.dtype, self._device)
        return tensors

    def placement(self) -> list[Placement]:
        return [
            Placement(t.name, self._plans[t.name], rank, start, stop - start, 0, t.dim)
            for t in self.layout.tables
            for rank, (start, stop) in enumerate(self._spans[t.name])
            if stop > start
        ]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        lengths_FB = kjt.lengths().view(len(self._keys), -1)
        return self._apply_mean_pooling(
            _RowShardedLookup.apply(self._anchor, self, kjt), lengths_FB
        )

    def _mine(self, everyone: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Of all ids those whose rows are here, numbered from our first row of their table."""
        per_feature = torch.tensor(everyone.length_per_key(), device=self._device)
        low_V = self._low_F.repeat_interleave(per_feature)
        high_V = self._high_F.repeat_interleave(per_feature)
        values_V = everyone.values()
        here_V = (values_V >= low_V) & (values_V < high_V)
        before = torch.zeros(len(values_V) + 1, dtype=torch.int64, device=self._device)
        before[1:] = here_V.cumsum(0)
        lengths = before[everyone.offsets()].diff()
        weights_V = everyone.weights_or_none()
        return KeyedJaggedTensor(
            keys=self._keys,
            values=(values_V - low_V)[here_V],
            weights=None if weights_V is None else weights_V[here_V],
            lengths=lengths,
        )


class _RowShardedLookup(torch.autograd.Function):
    """Every rank looks up its rows for all batches; each batch gets the sum of what they found."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tables: RowShardedTables, kjt: KeyedJaggedTensor
    ) -> Tensor:
        ranks = tables._ranks
        sizes = [len(lengths) // len(tables._keys) for lengths in _lengths(kjt, ranks)]
        mine = tables._mine(all_gather_ids(kjt, ranks))
        with torch.enable_grad():
            pooled_NE = tables._engine(mine)
        ctx.tables, ctx.pooled_NE = tables, pooled_NE
        size = kjt.stride()
        found_WBE = pooled_NE.new_empty(ranks.world_size * size, pooled_NE.shape[1])
        dist.all_to_all_single(
            found_WBE,
            pooled_NE.detach().contiguous(),
            output_split_sizes=[size] * ranks.world_size,
            input_split_sizes=sizes,
            group=ranks.group,
        )
        return found_WBE.view(ranks.world_size, size, -1).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        grads_NE = torch.cat(ctx.tables._ranks.all_gather_rows(grad_BE.contiguous()))
        ctx.pooled_NE.backward(grads_NE)  # steps the rows that are here
        return None, None, None


def all_gather_ids(kjt: KeyedJaggedTensor, ranks: Ranks) -> KeyedJaggedTensor:
    """Collective. The batches of all ranks as one, side by side in the order of ranks."""
    lengths_FB = [t.view(len(kjt.keys()), -1) for t in _lengths(kjt, ranks)]
    per_feature = [t.sum(1).tolist() for t in lengths_FB]  # sync

    def side_by_side(own_V: Tensor) -> Tensor:
        parts = [v.split(n) for v, n in zip(ranks.all_gather_rows(own_V), per_feature)]
        return torch.cat([of_rank[f] for f in range(len(kjt.keys())) for of_rank in parts])

    weights_V = kjt.weights_or_none()
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=side_by_side(kjt.values()),
        weights=None if weights_V is None else side_by_side(weights_V),
        lengths=torch.cat(lengths_FB, dim=1).flatten(),
    )


def _lengths(kjt: KeyedJaggedTensor, ranks: Ranks) -> list[Tensor]:
    return ranks.all_gather_rows(kjt.lengths())


def _summed(tables: Sequence[TableSpec]) -> list[TableSpec]:
    """Engines add up; `Tables._averaged` makes means of it."""
    return [replace(t, pooling="sum") for t in tables]


def even_row_ranges(num_rows: int, world_size: int) -> list[RowRange]:
    """Blocks of equal size, the last ones shorter or empty: TorchRec's row-wise sharding."""
    block = -(-num_rows // world_size)
    return [(min(r * block, num_rows), min((r + 1) * block, num_rows)) for r in range(world_size)]


def whole_table_ranges(sizes: Mapping[str, int], world_size: int) -> dict[str, list[RowRange]]:
    """Every table on one rank, the largest first to the rank that has least. sizes: rows."""
    load = [0] * world_size
    spans: dict[str, list[RowRange]] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        owner = load.index(min(load))
        load[owner] += sizes[name]
        spans[name] = [
            (0, sizes[name]) if r == owner else (sizes[name], sizes[name]) if r > owner else (0, 0)
            for r in range(world_size)
        ]
    return spans
