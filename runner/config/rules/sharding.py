"""Rules for the `sharding` group: which plans the optimizers of the tables allow.

The names of the tables are known only when the data have been read. Until then patterns of
optimizer.parts are all that is known; whatever depends on names is checked later.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.rules.hardware import runs_on_cpu
from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import TUNING_LOOPS
from runner.embeddings.sharding_rules import (
    TableRules,
    all_use_own_exchange,
    bandwidth_problems,
    early_plan_problems,
    possible_plans,
)
from runner.embeddings.sharding_settings import DISK, NO_16_BIT_ON_CUDA, TableRule, check_sharding
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.settings import SPARSE_KINDS


def check_sharding_rules(config: Config) -> Iterator[str]:
    """Check the plans against the optimizers of the tables."""
    node = config["sharding"]
    yield from check_sharding(node)
    if (rules := _rules(config)) is None:
        return
    cpu = runs_on_cpu(config)
    if not cpu and config["trainer"]["device"] != "auto":
        yield from (f"{r.described}: {NO_16_BIT_ON_CUDA}" for r in rules.possible() if r.is_16_bit)
    yield from _check_disk(config)
    if config["trainer"]["num_processes"] == 1:  # it has all tables whole, unless on disk
        plans = node.get("tables") or {}
        in_files = {name: plan for name, plan in plans.items() if plan == DISK}
        plan = DISK if node.get("plan") == DISK else "auto"
        yield from early_plan_problems({"plan": plan, "tables": in_files}, rules, on_cpu=cpu)
        return
    yield from early_plan_problems(node, rules, on_cpu=cpu)
    yield from bandwidth_problems(node, possible_plans(node, rules), on_cpu=cpu)


def _check_disk(config: Config) -> Iterator[str]:
    """Check that nothing copies tables on disk into memory."""
    node = config["sharding"]
    if DISK not in (node.get("plan"), *(node.get("tables") or {}).values()):
        return
    if get_key(config, "loop._target_") in TUNING_LOOPS:
        yield (
            "sharding: a table on disk: the tuning loops keep a copy of all tables in memory; tune "
            "with smaller tables, or set trainer.batch_size and the rates"
        )
    if any(node.get("l2_tables") for node in _sparse_nodes(config)):
        yield (
            "sharding: a table on disk: optimizer.sparse.l2_tables needs a copy of it in memory at "
            "every save; l2_lookups works"
        )


def _sparse_nodes(config: Config) -> list[Config]:
    """Return the settings of tables: the common ones, and those of parts."""
    optimizer = config["optimizer"]
    return [node.get("sparse") or {} for node in (optimizer, *(optimizer.get("parts") or []))]


def check_sparse_dist(config: Config) -> Iterator[str]:
    """Check that TorchRec can shard a table whose ids its pipeline may send ahead."""
    trainer, rules = config["trainer"], _rules(config)
    if trainer.get("pipeline") != "sparse_dist" or trainer["num_processes"] == 1 or rules is None:
        return
    if all_use_own_exchange(possible_plans(config["sharding"], rules), on_cpu=runs_on_cpu(config)):
        kinds = ", ".join(r.described for r in rules.possible() if r.is_configured)
        yield (
            f"trainer.pipeline=sparse_dist: with {kinds} and these plans our own exchange holds "
            "the tables, which sends ids within the update; auto takes the best that works"
        )


def _rules(config: Config) -> TableRules | None:
    """Return the optimizers of the tables; None if a setting is wrong, as reported elsewhere."""
    kind = get_key(config, "optimizer.sparse.kind")
    try:
        parts = parse_parameter_groups(config["optimizer"])
    except ConfigError:
        return None
    if kind not in SPARSE_KINDS:
        return None
    return TableRules(TableRule.of(config["optimizer"]["sparse"], "").kind, parts)
