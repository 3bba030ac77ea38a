"""Typed settings of the groups that our own code reads, keys as in `conf/`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar, get_type_hints

from runner.optim.sharding import ShardingSettings


@dataclass(frozen=True)
class Monitor:
    metric: str = "validation/auc"
    direction: str = "max"  # max or min


@dataclass(frozen=True)
class TrainerSettings:
    max_steps: int | None = None
    max_epochs: int | None = 1
    batch_size: int = 4096  # rows a rank and micro-batch
    accumulate: int = 1
    amp: bool = False
    amp_dtype: str = "bf16"
    tf32: bool = False
    device: str = "auto"
    num_threads: int | None = None
    deterministic: bool = False
    log_every: int | str = 50
    eval_every: int | str | None = "1ep"
    traceback: bool = False
    num_processes: int = 1
    rank_timeout_s: int = 300


@dataclass(frozen=True)
class CheckpointSettings:
    save_every: int | str | None = "5min"
    keep: int = 2
    monitor: Monitor = field(default_factory=Monitor)
    step: int | str = "best"
    path: str | None = None
    init_from: str | None = None


@dataclass(frozen=True)
class TopSettings:
    """Keys of conf/config.yaml that belong to no group."""

    name: str | None = None
    seed: int = 0
    run: str | None = None


@dataclass(frozen=True)
class EvaluateLoopSettings:
    split: str | None = None
    max_batches: int | None = None
    follow: bool = False
    pick: str = "all"
    poll_s: float = 5
    timeout_s: float = 3600


# Node -> its settings. Nodes that are not here take their keys and types from the option's YAML.
BY_NODE: dict[str, type] = {
    "": TopSettings,
    "trainer": TrainerSettings,
    "checkpoint": CheckpointSettings,
    "sharding": ShardingSettings,
}
# The same by what a node's `_target_` names, wherever it stands.
BY_TARGET: dict[str, type] = {
    "runner.loops.evaluate.evaluate": EvaluateLoopSettings,
}

# Nodes that a parser of their own judges in runner/rules.py, with the reason for each refusal.
JUDGED_ELSEWHERE = ("optimizer.sparse", "scheduler", "sharding.tables")

Settings = TypeVar("Settings")


def settings_from(kind: type[Settings], node: Mapping[str, Any]) -> Settings:
    """A settings record from a checked node of the configuration, nested records included."""
    hints = get_type_hints(kind)
    values = {
        name: settings_from(hints[name], value) if is_dataclass(hints[name]) else value
        for name, value in node.items()
        if name != "_target_"
    }
    return kind(**values)
