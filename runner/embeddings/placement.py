"""Tables of several ranks: which engine holds which table, and the weights they start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.composite_tables import CompositeTables
from runner.embeddings.exchanged_tables import (
    ReplicatedTables,
    RowShardedTables,
    even_row_ranges,
    whole_table_ranges,
)
from runner.embeddings.factory import check_table_specs
from runner.embeddings.huge_pages import advise_huge_pages
from runner.embeddings.initialization import BLOCK_ROWS, init_rows_
from runner.embeddings.interface import EmbeddingTables, Placement, TableSpec, make_layout
from runner.embeddings.memory_budget import check_memory, table_bytes_per_rank, table_memory_budget
from runner.embeddings.sharding_rules import TableRules, check_plans
from runner.embeddings.sharding_settings import ShardingSettings, check_table_names, engine_name
from runner.embeddings.torchrec_tables import TorchRecTables
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
    used_bytes: Sequence[int] = (),
) -> EmbeddingTables:
    """Collective. Tables with the initial weights of one process, as the settings spread them.

    Args: batch_size: rows a rank looks up at once, for the planner. used_bytes: bytes that each rank has
    of other tables already; none by default.
    Raises: ConfigError for a plan that cannot be had, and for tables that do not fit.
    """
    check_table_specs(specs)
    names = [spec.name for spec in specs]
    check_table_names(sharding, names)
    on_cpu = device.type == "cpu"
    check_plans(sharding, names, TableRules(settings.kind), on_cpu=on_cpu)
    by_us = engine_name("auto", settings.kind, on_cpu=on_cpu) == "ours"
    copied = [s for s in specs if sharding.plan_of(s.name) == "data_parallel"]
    others = [s for s in specs if s not in copied]
    plans, spans = _spans(others if by_us else [], sharding, ranks)
    taken = _ours(copied, specs, spans, settings.kind, ranks.world_size)
    if used_bytes:
        taken = [a + b for a, b in zip(taken, used_bytes, strict=True)]
    free = table_memory_budget(sharding, ranks, device)
    check_memory(taken, free, sharding)
    parts: list[EmbeddingTables] = []
    if others:
        layout = make_layout(others, _features(others, feature_order), by_dim=False)
        if by_us:
            parts.append(
                RowShardedTables(
                    layout, settings, ranks, device=device, plans=plans, row_ranges=spans
                )
            )
        else:
            sharded = TorchRecTables(
                layout,
                settings,
                sharding,
                ranks,
                device=device,
                free_bytes=free - max(taken),
                batch_size=batch_size,
            )
            for kernel, _ in sharded._kernels():
                protect_zero_gradient_rows(kernel, settings)
            parts.append(sharded)
    if copied:
        layout = make_layout(copied, _features(copied, feature_order), by_dim=False)
        parts.append(ReplicatedTables(layout, settings, ranks, device=device))
    tables = parts[0]
    if len(parts) > 1:
        layout = make_layout(specs, feature_order, by_dim=False)
        tables = CompositeTables(layout, settings, parts, device=device)
    _fill(tables, specs, seed)
    return tables


def describe_placement(placement: Sequence[Placement], world_size: int) -> str:
    """A line a table: its plan and what each rank has of it; then the weights of each rank."""
    tables: dict[str, list[Placement]] = {}
    totals = [0] * world_size
    for piece in placement:
        tables.setdefault(piece.table, []).append(piece)
        totals[piece.rank] += piece.num_rows * piece.num_columns
    width = max(len("weights"), *map(len, tables))
    lines = [f"tables on {world_size} ranks:"]
    for name, pieces in tables.items():
        held = [f"rank {p.rank}: {_part(p)}" for p in pieces if p.num_rows]
        if len({_part(p) for p in pieces}) == 1 < len(pieces):
            held = [f"every rank: {_part(pieces[0])}"]
        lines.append(f"  {name:<{width}}  {pieces[0].plan:<14}  {', '.join(held)}")
    weights = ", ".join(f"rank {rank}: {total:,}" for rank, total in enumerate(totals))
    lines.append(f"  {'weights':<{width}}  {'':<14}  {weights}")
    return "\n".join(lines)


def _part(piece: Placement) -> str:
    rows = f"rows {piece.first_row:,} to {piece.first_row + piece.num_rows - 1:,}"
    if piece.first_column == 0 and piece.plan != "column_wise":
        return rows
    return f"{rows} of columns {piece.first_column} to {piece.first_column + piece.num_columns - 1}"


def _features(specs: Sequence[TableSpec], feature_order: Sequence[str]) -> list[str]:
    own = {name for spec in specs for name in spec.features}
    return [name for name in feature_order if name in own]


def _spans(
    specs: Sequence[TableSpec], sharding: ShardingSettings, ranks: Ranks
) -> tuple[dict[str, str], dict[str, list[tuple[int, int]]]]:
    """Plans and rows of our own exchange: whole tables where asked for, else rows of equal blocks.

    Its ranks all exchange with all, so a table over the ranks of one machine is one over all.
    """
    whole = {s.name: s.num_rows for s in specs if sharding.plan_of(s.name) == "table_wise"}
    spans = whole_table_ranges(whole, ranks.world_size)
    spans |= {
        s.name: even_row_ranges(s.num_rows, ranks.world_size) for s in specs if s.name not in whole
    }
    return {s.name: "table_wise" if s.name in whole else "row_wise" for s in specs}, spans


def _ours(
    copied: Sequence[TableSpec],
    specs: Sequence[TableSpec],
    spans: Mapping[str, Sequence[tuple[int, int]]],
    kind: str,
    world_size: int,
) -> list[int]:
    """Bytes of every rank: copies of some tables, and spans of the rows of others."""
    rows = {s.name: [s.num_rows] * world_size for s in copied}
    rows |= {name: [stop - start for start, stop in ends] for name, ends in spans.items()}
    pieces = [
        Placement(s.name, "", rank, 0, num_rows, 0, s.dim)
        for s in specs
        for rank, num_rows in enumerate(rows.get(s.name, ()))
    ]
    return table_bytes_per_rank(pieces, kind, world_size)


def _fill(tables: EmbeddingTables, specs: Sequence[TableSpec], seed: int) -> None:
    """Initial weights, equal under any plan. A piece is made block by block, in its full width."""
    state = tables.state()
    advise_huge_pages(state.values())
    for spec in specs:
        weight = state[f"{spec.name}/weight"]
        pieces = weight.shards if isinstance(weight, LocalShards) else (LocalShard(weight, (0, 0)),)
        for piece in pieces:
            first_row, first_column = piece.offset
            columns = slice(first_column, first_column + piece.tensor.shape[1])
            for start in range(0, piece.tensor.shape[0], BLOCK_ROWS):
                part = piece.tensor[start : start + BLOCK_ROWS]
                rows = torch.empty(len(part), spec.dim)
                init_rows_(
                    rows,
                    seed=seed,
                    table=spec.name,
                    num_rows=spec.num_rows,
                    first_row=first_row + start,
                    bound=spec.init_bound,
                )
                part.copy_(rows[:, columns])
