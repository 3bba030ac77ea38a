"""The memory that tables need on each rank, and that a device has for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runner.distributed.ranks import Ranks
from runner.embeddings import torchrec_tables
from runner.embeddings.factory import build_uninitialized_tables
from runner.embeddings.interface import Placement, TableSpec
from runner.embeddings.memory_budget import check_memory, table_bytes_per_rank, table_memory_budget
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.settings import SPARSE_KINDS, parse_sparse
from runner.training.builder.optimizers import assign_parameters
from runner.training.builder.tables import make_table_builder

CPU = torch.device("cpu")
TWO = Ranks(world_size=2, local_world_size=2)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_a_table_takes_what_its_engine_allocates(kind, dtype):
    spec = TableSpec("t", 30, 8, ("f",))
    settings = parse_sparse({"kind": kind, "lr": 0.1, "dtype": dtype})
    state = build_uninitialized_tables([spec], ("f",), settings, CPU).state()
    [size] = table_bytes_per_rank([Placement("t", "row_wise", 0, 0, 30, 0, 8)], settings, 1)
    assert size == sum(t.nbytes for t in state.values())


def test_every_rank_takes_what_lies_on_it():
    pieces = [
        Placement("a", "row_wise", 0, 0, 10, 0, 4),
        Placement("a", "row_wise", 2, 10, 5, 0, 4),
        Placement("b", "column_wise", 2, 0, 3, 4, 8),
    ]
    sgd = parse_sparse({"kind": "sgd", "lr": 0.1})
    assert table_bytes_per_rank(pieces, sgd, 3) == [4 * 40, 0, 4 * (20 + 24)]


def test_a_device_has_its_configured_memory_less_the_reserve():
    sharding = ShardingSettings(device_memory_gb=2.0, storage_reserve=0.25)
    assert table_memory_budget(sharding, TWO, CPU) == 1_500_000_000
    machine = table_memory_budget(ShardingSettings(storage_reserve=0.0), Ranks(), CPU)
    assert table_memory_budget(ShardingSettings(storage_reserve=0.0), TWO, CPU) == machine // 2


def test_the_rank_with_most_is_named():
    sharding = ShardingSettings(device_memory_gb=0.000001)
    check_memory([850, 850], 850, sharding)
    with pytest.raises(ConfigError) as caught:
        check_memory([10, 2_500_000], 850, sharding)
    message = str(caught.value)
    assert message.startswith("sharding.device_memory_gb=1e-06: rank 1 would hold 2.5 MB")
    assert "850 bytes" in message and "storage_reserve=0.15" in message


SPECS = [TableSpec(name, 1000, 8, (name,)) for name in ("C1", "C2", "C3")]
WEIGHTS = 1000 * 8 * 4  # bytes of each


def builder(free: int, kind: str, second: str, **sharding):
    """Build tables of two ranks with `free` bytes: C1 and C3 by one rule, C2 by another."""
    parts = [{"pattern": "C2", "sparse": {"kind": second, "lr": 0.1}}]
    sparse = {"kind": kind, "lr": 0.1}
    node = {"dense": {"_target_": "torch.optim.Adam"}, "sparse": sparse, "parts": parts}
    owned = assign_parameters(
        parse_parameter_groups(node), ["top.weight"], [spec.name for spec in SPECS]
    )
    settings = ShardingSettings(device_memory_gb=free / 1e9, storage_reserve=0.0, **sharding)
    rules = [parse_sparse(sparse), parse_sparse({**sparse, "kind": second})]
    where = {"seed": 0, "device": CPU, "batch_size": 8}
    return make_table_builder(settings, TWO, owned, rules[0], **where), rules


def test_memory_of_one_rule_is_not_available_to_the_next():
    taken = (2 * 3 + 3) * WEIGHTS // 2  # three numbers a weight, half the rows on each rank
    for free, fits in ((taken, True), (taken - 1, False)):
        build, rules = builder(free, "adam", "lamb")
        build([SPECS[0], SPECS[2]], ["C1", "C3"], rules[0])
        if fits:
            build([SPECS[1]], ["C2"], rules[1])
            continue
        with pytest.raises(ConfigError, match="rank 0 would hold 144"):
            build([SPECS[1]], ["C2"], rules[1])


def test_padding_of_one_rule_is_not_available_to_the_next():
    """Columns of width 6 are stored as 8: together two rules fit only without their padding."""
    narrow = [replace(spec, dim=6) for spec in SPECS]
    stored = (2 * 3 + 3) * WEIGHTS // 2
    build, rules = builder(stored - 1, "adam", "lamb")
    build([narrow[0], narrow[2]], ["C1", "C3"], rules[0])
    with pytest.raises(ConfigError, match="rank 0 would hold 144"):
        build([narrow[1]], ["C2"], rules[1])


def test_torchrecs_planner_gets_the_memory_that_copies_and_other_rules_leave(monkeypatch):
    seen = []

    class Sharded:
        def __init__(self, *args, free_bytes: int, **more) -> None:
            seen.append(free_bytes)
            raise ConfigError("enough")

    monkeypatch.setattr(torchrec_tables, "TorchRecTables", Sharded)
    build, rules = builder(10 * WEIGHTS, "sgd", "adam", tables={"C3": "data_parallel"})
    build([SPECS[1]], ["C2"], rules[1])
    with pytest.raises(ConfigError, match="enough"):
        build([SPECS[0], SPECS[2]], ["C1", "C3"], rules[0])
    assert seen == [10 * WEIGHTS - 3 * WEIGHTS // 2 - WEIGHTS]


def test_tables_whose_every_row_is_updated_have_a_gradient_of_each_weight():
    """Adam on 30 rows of width 8: weight, two moments and the gradient of 4 bytes each."""
    shards = [Placement("t", "row_wise", 0, 0, 30, 0, 8)]
    settings = parse_sparse({"kind": "adam", "lr": 0.1, "every_row": True})
    assert table_bytes_per_rank(shards, settings, 1) == [4 * 30 * 8 * 4]
