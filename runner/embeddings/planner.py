"""The plan of TorchRec's planner for tables on ranks, within our settings."""

from __future__ import annotations

import logging

import torch
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from runner.distributed.ranks import Ranks, default_group
from runner.embeddings.interface import Layout, Placement, TableSpec
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError

_GB = 10**9
_AUTO = (ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value)
# Their sums are combined by a reduce-scatter, which needs batches of equal size.
ROW_SHARDING_TYPES = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value)


class FusedSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # torchrec has no types
    """TorchRec's sharder with row-wise sharding on CPU, which it lacks although gloo can do it."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [t.value for t in ShardingType if t is not ShardingType.DATA_PARALLEL]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [EmbeddingComputeKernel.FUSED.value]


def make_sharding_plan(
    collection: EmbeddingBagCollection,
    sharder: FusedSharder,
    layout: Layout,
    sharding: ShardingSettings,
    topology: Topology,
    batch_size: int,
) -> ShardingPlan:
    """Make TorchRec's plan within the settings.

    Collective.

    Raises:
        ConfigError: if there is no plan, with the planner's reason.
    """
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        # TorchRec's reservation ignores the memory of a CPU, so the topology excludes the reserve
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints={s.name: _constraint(s, sharding, topology.world_size) for s in layout.tables},
        debug=False,
    )
    try:
        return planner.collective_plan(collection, [sharder], default_group())
    except PlannerError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"sharding.plan={sharding.plan}: TorchRec's planner finds no way to place the tables "
            f"on {topology.world_size} ranks: {first} More ranks, a larger "
            "sharding.device_memory_gb or narrower tables may help"
        ) from error


def _constraint(
    spec: TableSpec, sharding: ShardingSettings, world_size: int
) -> ParameterConstraints:
    plan = sharding.plan_of(spec.name)
    kinds = list(_AUTO) if plan == "auto" else [plan]
    block = -(-spec.num_rows // world_size)
    if block * (world_size - 1) >= spec.num_rows:
        # the last rank would get no rows, which FBGEMM's CPU kernels refuse: the table stays whole
        kinds = [ShardingType.TABLE_WISE.value if k in ROW_SHARDING_TYPES else k for k in kinds]
    return ParameterConstraints(
        sharding_types=list(dict.fromkeys(kinds)),
        compute_kernels=[EmbeddingComputeKernel.FUSED.value],
        min_partition=min(sharding.min_columns, spec.dim) if plan == "column_wise" else None,
        pooling_factors=list(spec.mean_lengths) or [1.0] * len(spec.features),
    )


def make_topology(
    sharding: ShardingSettings, ranks: Ranks, device: torch.device, free_bytes: int
) -> Topology:
    """Describe the ranks, their memory for tables and the speeds between them to the planner."""
    logging.getLogger("torchrec.distributed").setLevel(logging.ERROR)  # it logs every topology
    memory = {"hbm_cap" if device.type == "cuda" else "ddr_cap": free_bytes}
    speeds = {"intra_host_bw": sharding.intra_host_gb_per_s}
    speeds |= {"inter_host_bw": sharding.inter_host_gb_per_s}
    bytes_per_ms = _GB / 1000
    return Topology(
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        compute_device=device.type,
        **memory,
        **{name: speed * bytes_per_ms for name, speed in speeds.items() if speed is not None},
    )


def placements_of_plan(plan: ShardingPlan) -> list[Placement]:
    """Return the shards of a plan."""
    placements = []
    for module in plan.plan.values():
        for table, parameter in module.items():
            assert parameter.sharding_spec is not None
            for shard in parameter.sharding_spec.shards:
                (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
                rank = shard.placement.rank()
                placements.append(
                    Placement(table, parameter.sharding_type, rank, row, rows, column, columns)
                )
    return placements
