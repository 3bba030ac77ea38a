"""The `sharding` group reaches TorchRec's planner, checked without a process group."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner

from runner.batch import SparseFeature
from runner.distributed.ranks import Ranks
from runner.embeddings import fbgemm_tables, planner, torchrec_tables
from runner.embeddings.interface import Placement, TableSpec, make_layout
from runner.embeddings.memory_budget import table_memory_budget
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import make_table_specs
from runner.optim.settings import SparseSettings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Plan without the broadcast of rank 0's plan; every rank makes the same plan."""
    monkeypatch.setattr(planner, "default_group", lambda: None)
    monkeypatch.setattr(
        EmbeddingShardingPlanner,
        "collective_plan",
        lambda self, module, sharders, group: self.plan(module, sharders),
    )


def placed(specs: list[TableSpec], **settings) -> list[Placement]:
    """Return the shards of tables on two ranks, in the order of the tables."""
    names = [name for spec in specs for name in spec.features]
    layout = make_layout(specs, names, by_dim=True)
    params = fbgemm_tables.kernel_options(SparseSettings(kind="rowwise_adagrad", lr=0.01), CPU)
    sharding = ShardingSettings(**settings)
    ranks = Ranks(world_size=2, local_world_size=2)
    found = planner.make_sharding_plan(
        torchrec_tables._collection(layout),
        planner.FusedSharder(fused_params=params),
        layout,
        sharding,
        planner.make_topology(sharding, ranks, CPU, table_memory_budget(sharding, ranks, CPU)),
        4096,
    )
    order = [spec.name for spec in specs]
    return sorted(planner.placements_of_plan(found), key=lambda shard: order.index(shard.table))


def plan(rows: list[int], dim: int, **settings) -> list[str]:
    """Return the plan of each table on two ranks."""
    specs = [TableSpec(f"t{n}", count, dim, (f"f{n}",)) for n, count in enumerate(rows)]
    return list({shard.table: shard.plan for shard in placed(specs, **settings)}.values())


BIG = [4_000_000, 1000]  # the first takes 1 GB


@pytest.mark.parity("E7")
def test_tables_must_fit_the_memory_of_a_device():
    assert plan(BIG, 64, plan="table_wise", device_memory_gb=1.2, storage_reserve=0.0) == [
        "table_wise", "table_wise"
    ]  # fmt: skip
    assert plan(BIG, 64, device_memory_gb=0.6, storage_reserve=0.0)[0] == "row_wise"
    with pytest.raises(ConfigError, match="no way to place the tables on 2 ranks"):
        plan(BIG, 64, device_memory_gb=0.4, storage_reserve=0.0)


def test_the_reserve_is_left_free_on_a_cpu_too():
    assert plan(BIG, 64, device_memory_gb=0.6, storage_reserve=0.0)[0] == "row_wise"
    with pytest.raises(ConfigError, match="insufficient storage"):
        plan(BIG, 64, device_memory_gb=0.6, storage_reserve=0.5)


@pytest.mark.parity("E7")
def test_bandwidths_move_tables():
    rows = [100_000] * 3
    slow = plan(rows, 16, intra_host_gb_per_s=1e-3)
    fast = plan(rows, 16, intra_host_gb_per_s=1e3)
    assert sorted(slow) == ["row_wise", "table_wise", "table_wise"]
    assert fast == ["row_wise"] * 3


def test_the_planner_knows_how_many_ids_a_row_has():
    """Of four tables, the one with fifty ids a row has a rank to itself."""
    lengths = (1.0, 50.0, 1.0, 1.0)
    specs = make_table_specs(
        [SparseFeature(f"f{n}", 100_000, mean_length=x) for n, x in enumerate(lengths)], 16
    )
    assert [spec.mean_lengths for spec in specs] == [(x,) for x in lengths]
    ranks = [p.rank for p in placed(specs, plan="table_wise")]
    assert ranks.count(ranks[1]) == 1
    even = [p.rank for p in placed([replace(s, mean_lengths=()) for s in specs], plan="table_wise")]
    assert sorted(even) == [0, 0, 1, 1]


def test_features_of_one_table_have_a_length_each():
    shared = [
        SparseFeature("a", 100, table="t", mean_length=3.0),
        SparseFeature("b", 100, table="t", mean_length=0.5),
    ]
    [spec] = make_table_specs(shared, 4)
    settings = ShardingSettings()
    assert planner._constraint(spec, settings, 2).pooling_factors == [3.0, 0.5]
    without_lengths = replace(spec, mean_lengths=())
    assert planner._constraint(without_lengths, settings, 2).pooling_factors == [1.0, 1.0]
