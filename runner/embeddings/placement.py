"""Builds tables on several ranks: chooses the engine of each table, and sets initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.composite_tables import join_tables, read_features
from runner.embeddings.decayed_tables import decay_whole_tables
from runner.embeddings.exchanged_tables import ReplicatedTables, RowShardedTables
from runner.embeddings.factory import check_table_specs, with_rounding_seed
from runner.embeddings.initialization import BLOCK_ROWS, init_rows_
from runner.embeddings.interface import EmbeddingTables, Layout, Placement, TableSpec, make_layout
from runner.embeddings.memory_budget import check_memory, table_bytes_per_rank, table_memory_budget
from runner.embeddings.padded_tables import build_any_width
from runner.embeddings.row_exchange import RowRange, even_row_ranges, row_ranges_on_groups
from runner.embeddings.sharding_rules import TableRules, check_plans
from runner.embeddings.sharding_settings import (
    DISK,
    ShardingSettings,
    check_table_names,
    engine_name,
    placed_kind,
)
from runner.embeddings.zero_gradient_rows import protect_zero_gradient_rows
from runner.optim.settings import SparseSettings


def shard_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    sharding: ShardingSettings,
    ranks: Ranks,
    *,
    seed: int,
    device: torch.device,
    batch_size: int,
    used_bytes: list[int] | None = None,
    scratch: Path | None = None,
) -> EmbeddingTables:
    """Build tables over ranks, with the same initial weights as in one process.

    Collective.

    Args:
        feature_order: the features in the order of the batches' keys and of the output.
        batch_size: rows that a rank looks up at once, for the planner.
        used_bytes: bytes that other tables use on each rank; those of these tables are added.
        scratch: a folder for the files of tables whose plan is disk.

    Raises:
        ConfigError: for a plan that is refused, and for tables that do not fit.
    """
    check_table_specs(specs)
    names = [spec.name for spec in specs]
    check_table_names(sharding, names)
    on_cpu = device.type == "cpu"
    check_plans(sharding, names, TableRules(placed_kind(settings)), on_cpu=on_cpu)
    used = [0] * ranks.world_size if used_bytes is None else used_bytes

    def build(
        specs: Sequence[TableSpec], order: Sequence[str], settings: SparseSettings
    ) -> EmbeddingTables:
        tables = _shard_stored_tables(
            specs,
            order,
            with_rounding_seed(settings, seed),
            sharding,
            ranks,
            device=device,
            batch_size=batch_size,
            used_bytes=used,
            scratch=scratch,
        )
        _init_weights(tables, specs, seed)
        added = table_bytes_per_rank(tables.placement(), settings, ranks.world_size)
        used[:] = [a + b for a, b in zip(used, added, strict=True)]
        return tables

    tables = build_any_width(specs, feature_order, settings, build, device=device)
    return decay_whole_tables(tables, device=device)


def _shard_stored_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    sharding: ShardingSettings,
    ranks: Ranks,
    *,
    device: torch.device,
    batch_size: int,
    used_bytes: Sequence[int],
    scratch: Path | None,
) -> EmbeddingTables:
    """Build tables whose widths the kernels can store, with their weights not yet set."""
    on_cpu = device.type == "cpu"
    uses_exchange = engine_name("auto", placed_kind(settings), on_cpu=on_cpu) == "ours"
    replicated = [s for s in specs if sharding.plan_of(s.name) == "data_parallel"]
    on_disk = [s for s in specs if sharding.plan_of(s.name) == DISK]
    assert scratch is not None or not on_disk, "tables on disk need a folder"
    sharded = [s for s in specs if s not in replicated and s not in on_disk]
    plans, row_ranges = _exchange_plans(sharded if uses_exchange else [], sharding, ranks)
    needed = _exchange_bytes(replicated, specs, row_ranges, settings, ranks.world_size)
    needed = [a + b for a, b in zip(needed, used_bytes, strict=True)]
    budget = table_memory_budget(sharding, ranks, device)
    check_memory(needed, budget, sharding)
    members: list[EmbeddingTables] = []

    def layout_of(own: Sequence[TableSpec]) -> Layout:
        return make_layout(own, read_features(own, feature_order), by_dim=False)

    exchange = partial(RowShardedTables, settings=settings, ranks=ranks, device=device)
    if sharded and uses_exchange:
        members.append(exchange(layout_of(sharded), plans=plans, row_ranges=row_ranges))
    elif sharded:
        # imports all of TorchRec
        from runner.embeddings.torchrec_tables import TorchRecTables

        by_torchrec = TorchRecTables(
            layout_of(sharded),
            settings,
            sharding,
            ranks,
            device=device,
            free_bytes=budget - max(needed),
            batch_size=batch_size,
        )
        for kernel, _ in by_torchrec._kernels():
            protect_zero_gradient_rows(kernel, settings)
        members.append(by_torchrec)
    if on_disk:
        rows = {s.name: even_row_ranges(s.num_rows, ranks.world_size) for s in on_disk}
        in_files = exchange(
            layout_of(on_disk), plans=dict.fromkeys(rows, DISK), row_ranges=rows, scratch=scratch
        )
        members.append(in_files)
    if replicated:
        members.append(ReplicatedTables(layout_of(replicated), settings, ranks, device=device))
    return join_tables(members, specs, feature_order, settings, device=device)


def describe_placement(placement: Sequence[Placement], world_size: int) -> str:
    """Describe each table's plan and its shards in a line, then the weights of each rank."""
    tables: dict[str, list[Placement]] = {}
    totals = [0] * world_size
    for shard in placement:
        tables.setdefault(shard.table, []).append(shard)
        totals[shard.rank] += shard.num_rows * shard.num_columns
    width = max(len("weights"), *map(len, tables))
    lines = [f"tables on {world_size} ranks:"]
    for name, shards in tables.items():
        located = [f"rank {s.rank}: {_describe_shard(s)}" for s in shards if s.num_rows]
        if len({_describe_shard(s) for s in shards}) == 1 < len(shards):
            located = [f"every rank: {_describe_shard(shards[0])}"]
        lines.append(f"  {name:<{width}}  {shards[0].plan:<14}  {', '.join(located)}")
    weights = ", ".join(f"rank {rank}: {total:,}" for rank, total in enumerate(totals))
    lines.append(f"  {'weights':<{width}}  {'':<14}  {weights}")
    return "\n".join(lines)


def _describe_shard(shard: Placement) -> str:
    rows = f"rows {shard.first_row:,} to {shard.first_row + shard.num_rows - 1:,}"
    if shard.first_column == 0 and shard.plan != "column_wise":
        return rows
    return f"{rows} of columns {shard.first_column} to {shard.first_column + shard.num_columns - 1}"


def _exchange_plans(
    specs: Sequence[TableSpec], sharding: ShardingSettings, ranks: Ranks
) -> tuple[dict[str, str], dict[str, list[RowRange]]]:
    """Return the plans and row ranges of our own exchange.

    A table is whole on one rank, in equal blocks on the ranks of a node, or in equal blocks on all.
    """
    groups = {
        "table_wise": 1,
        "table_row_wise": ranks.local_world_size,
        "row_wise": ranks.world_size,
    }
    plans = {s.name: sharding.plan_of(s.name) for s in specs}
    plans = {name: plan if plan in groups else "row_wise" for name, plan in plans.items()}
    row_ranges: dict[str, list[RowRange]] = {}
    for plan, group_size in groups.items():
        sizes = {s.name: s.num_rows for s in specs if plans[s.name] == plan}
        row_ranges |= row_ranges_on_groups(sizes, ranks.world_size, group_size)
    return plans, row_ranges


def _exchange_bytes(
    replicated: Sequence[TableSpec],
    specs: Sequence[TableSpec],
    row_ranges: Mapping[str, Sequence[RowRange]],
    settings: SparseSettings,
    world_size: int,
) -> list[int]:
    """Return the bytes that each rank needs for replicated tables, and for its ranges of others."""
    rows = {s.name: [s.num_rows] * world_size for s in replicated}
    rows |= {name: [stop - start for start, stop in ends] for name, ends in row_ranges.items()}
    shards = [
        Placement(s.name, "", rank, 0, num_rows, 0, s.dim)
        for s in specs
        for rank, num_rows in enumerate(rows.get(s.name, ()))
    ]
    return table_bytes_per_rank(shards, settings, world_size)


def _init_weights(tables: EmbeddingTables, specs: Sequence[TableSpec], seed: int) -> None:
    """Write initial weights, which are the same under any plan.

    A shard is filled block by block, each of which is drawn in the full width of the table.
    """
    state = tables.state()
    for spec in specs:
        weight = state[f"{spec.name}/weight"]
        shards = weight.shards if isinstance(weight, LocalShards) else (LocalShard(weight, (0, 0)),)
        for shard in shards:
            first_row, first_column = shard.offset
            columns = slice(first_column, first_column + shard.tensor.shape[1])
            for start in range(0, shard.tensor.shape[0], BLOCK_ROWS):
                block = shard.tensor[start : start + BLOCK_ROWS]
                rows = torch.zeros(len(block), spec.dim)
                init_rows_(
                    rows[:, : spec.true_dim],
                    seed=seed,
                    table=spec.name,
                    num_rows=spec.num_rows,
                    first_row=first_row + start,
                    bound=spec.init_bound,
                )
                block.copy_(rows[:, columns])
