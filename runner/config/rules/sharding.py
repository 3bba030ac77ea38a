"""Rules of the `sharding` group: which plans the rules of tables allow, as far as patterns say it.

The names of all tables are known when the data has been read; what depends on them is refused then.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.rules.hardware import on_cpu
from runner.config.rules.keys import Config, get
from runner.embeddings.sharding_rules import (
    TableRules,
    all_ours,
    possible_plans,
    refused_bandwidths,
    refused_before_data,
)
from runner.embeddings.sharding_settings import check_sharding
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parts
from runner.optim.settings import KINDS


def sharding(config: Config) -> Iterator[str]:
    node = config["sharding"]
    yield from check_sharding(node)
    rules = _rules(config)
    # one process has all tables whole, so that any plan is as good as another
    if rules is None or config["trainer"]["num_processes"] == 1:
        return
    cpu = on_cpu(config)
    yield from refused_before_data(node, rules, on_cpu=cpu)
    yield from refused_bandwidths(node, possible_plans(node, rules), on_cpu=cpu)


def exchanges(config: Config) -> Iterator[str]:
    """Whether TorchRec may hold any table whose ids its pipeline could send ahead."""
    trainer, rules = config["trainer"], _rules(config)
    if trainer.get("pipeline") != "sparse_dist" or trainer["num_processes"] == 1 or rules is None:
        return
    if all_ours(possible_plans(config["sharding"], rules), on_cpu=on_cpu(config)):
        kinds = ", ".join(f"{r.key}={r.kind}" for r in rules.possible() if r.is_given)
        yield (
            f"trainer.pipeline=sparse_dist: with {kinds} and these plans our own exchange holds "
            "the tables, which sends ids within the update; auto takes what there is"
        )


def _rules(config: Config) -> TableRules | None:
    """None if the parts, or the kind, are wrong: that is said elsewhere."""
    kind = get(config, "optimizer.sparse.kind")
    try:
        parts = parse_parts(config["optimizer"])
    except ConfigError:
        return None
    return TableRules(kind, parts) if kind in KINDS else None
