"""What the `sharding` group says reaches TorchRec's planner, without a process group."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner

from runner.errors import ConfigError
from runner.optim import sharded
from runner.optim.layout import TableSpec, arrange
from runner.optim.settings import SparseSettings
from runner.optim.sharding import ShardingSettings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each rank makes the same plan; rank 0's is shared, which needs the others."""
    monkeypatch.setattr(sharded, "_world", lambda: None)
    monkeypatch.setattr(
        EmbeddingShardingPlanner,
        "collective_plan",
        lambda self, module, sharders, group: self.plan(module, sharders),
    )


def plan(rows: list[int], dim: int, **settings) -> list[str]:
    """How each table is placed on two ranks."""
    names = [f"f{n}" for n in range(len(rows))]
    specs = [TableSpec(f"t{n}", count, dim, (names[n],)) for n, count in enumerate(rows)]
    layout = arrange(specs, names, by_dim=True)
    params = sharded._fused_params(SparseSettings(kind="rowwise_adagrad", lr=0.01), CPU)
    found = sharded._plan(
        sharded._collection(layout),
        sharded._Sharder(fused_params=params),
        layout,
        ShardingSettings(**settings),
        SimpleNamespace(world_size=2, local_world_size=2),
        CPU,
        4096,
    )
    by_table = {name: p.sharding_type for m in found.plan.values() for name, p in m.items()}
    return [by_table[spec.name] for spec in specs]


BIG = [4_000_000, 1000]  # the first takes 1 GB


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


def test_bandwidths_move_tables():
    rows = [100_000] * 3
    slow = plan(rows, 16, intra_host_gb_per_s=1e-3)
    fast = plan(rows, 16, intra_host_gb_per_s=1e3)
    assert sorted(slow) == ["row_wise", "table_wise", "table_wise"]
    assert fast == ["row_wise"] * 3
