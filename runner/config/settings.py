"""Typed settings of the groups that our own code reads, keys as in `conf/`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar, get_type_hints

from runner.config.early_stopping import BatchOnPlateau, EarlyStop, LrOnPlateau
from runner.embeddings.sharding_settings import ShardingSettings
from runner.optim.settings import ClipSettings


@dataclass(frozen=True)
class MonitorSettings:
    metric: str = "validation/auc"
    direction: str = "max"  # max or min


@dataclass(frozen=True)
class LrScalingSettings:
    """Of all full learning rates, by the batches that an update adds up."""

    rule: str = "constant"  # constant, sqrt, linear
    batches: int | None = None  # null: ranks x accumulate when the run is new


@dataclass(frozen=True)
class EmaSettings:
    """An exponential moving average of the dense half's parameters."""

    decay: float | None = None  # null: none is kept
    warmup: bool = True  # at update k at most (1 + k) / (10 + k)
    evaluate: bool = True  # evaluations take it in place of the weights


@dataclass(frozen=True)
class ProfilerSettings:
    """A window of updates that torch's profiler records."""

    updates: int = 0  # 0: none
    after: int = 10  # updates of this process that come before


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
    clip: ClipSettings = field(default_factory=ClipSettings)
    penalties: list = field(default_factory=list)  # see runner/optim/penalty_settings.py
    log_gradients: str | None = None
    traceback: bool = False
    num_processes: int = 1
    rank_timeout_s: int = 300
    pipeline: str = "auto"  # auto, none, base, sparse_dist
    lr_scaling: LrScalingSettings = field(default_factory=LrScalingSettings)
    ema: EmaSettings = field(default_factory=EmaSettings)
    compile: bool = False
    profile: ProfilerSettings = field(default_factory=ProfilerSettings)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    lr_on_plateau: LrOnPlateau = field(default_factory=LrOnPlateau)
    batch_on_plateau: BatchOnPlateau = field(default_factory=BatchOnPlateau)


@dataclass(frozen=True)
class CheckpointSettings:
    save_every: int | str | None = "5min"
    keep: int = 2
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    step: int | str = "best"
    path: str | None = None
    init_from: str | None = None
    init_names: dict | None = None  # ours -> theirs, see runner/training/warm_start/warm_start.py
    init_tables: dict | None = None  # table -> {from, table}
    init_optimizer: bool = False
    init_average: bool = False


@dataclass(frozen=True)
class RootSettings:
    """Keys of conf/config.yaml that belong to no group."""

    name: str | None = None
    seed: int = 0
    run: str | None = None
    report: bool = True


@dataclass(frozen=True)
class SearchSettings:
    """Keys of conf/search/. space: key -> an expression of Hydra's grammar, as on the command line.

    pruner_first: evaluations that every job gets; pruner_factor: of asha, one in so many goes on;
    pruner_after: of median, jobs that must have ended before one is stopped; num_trials: in all.
    """

    space: dict[str, str]
    sampler: str = "tpe"
    pruner: str = "none"
    pruner_first: int = 1
    pruner_factor: int = 3
    pruner_after: int = 4
    num_trials: int | None = 20
    seed: int = 0
    objectives: dict[str, str] | None = None


@dataclass(frozen=True)
class RemoteSettings:
    """Keys of conf/remote/. dir: on the cluster; runtime_env: Ray's own."""

    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    dir: str | None = None
    runtime_env: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluateLoopSettings:
    split: str | None = None
    max_batches: int | None = None
    follow: bool = False
    pick: str = "all"
    poll_s: float = 5
    timeout_s: float = 3600


@dataclass(frozen=True)
class ThroughputSettings:
    every: int | str = 100
    warn_below: float = 0.5


@dataclass(frozen=True)
class MemorySettings:
    every: int | str = 100
    warn_free_below: float = 0.05


@dataclass(frozen=True)
class WeightsSettings:
    every: int | str = "1ep"
    parameters: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    sample_rows: int | None = 100_000
    histograms: list[str] = field(default_factory=list)
    gradient_histograms: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ActivationsSettings:
    every: int = 100
    modules: list[str] = field(default_factory=list)
    statistics: list[str] = field(default_factory=list)


# Node -> its settings. Nodes that are not here take their keys and types from the option's YAML.
SETTINGS_BY_NODE: dict[str, type] = {
    "": RootSettings,
    "trainer": TrainerSettings,
    "trainer.lr_scaling": LrScalingSettings,
    "trainer.ema": EmaSettings,
    "trainer.profile": ProfilerSettings,
    "trainer.early_stop": EarlyStop,
    "trainer.lr_on_plateau": LrOnPlateau,
    "trainer.batch_on_plateau": BatchOnPlateau,
    "trainer.clip": ClipSettings,
    "checkpoint": CheckpointSettings,
    "sharding": ShardingSettings,
    "search": SearchSettings,
    "remote": RemoteSettings,
}
# The same by what a node's `_target_` names, wherever it stands.
SETTINGS_BY_TARGET: dict[str, type] = {
    "runner.training.loops.evaluate.evaluate": EvaluateLoopSettings,
    "runner.training.callbacks.watch.throughput.Throughput": ThroughputSettings,
    "runner.training.callbacks.watch.memory.Memory": MemorySettings,
    "runner.training.callbacks.watch.weights.Weights": WeightsSettings,
    "runner.training.callbacks.watch.activations.Activations": ActivationsSettings,
}

# Nodes that a parser of their own judges in runner/config/rules/, with the reason for each refusal.
NODES_WITH_OWN_PARSER = (
    "optimizer.sparse",
    "optimizer.schedules.sparse",
    "optimizer.schedules.dense",
    "scheduler",
    "sharding.tables",
)
# Nodes that hold any number of `_target_` nodes, under names that the user chooses.
FREELY_NAMED_NODES = ("callbacks",)

Settings = TypeVar("Settings")


def make_settings(kind: type[Settings], node: Mapping[str, Any]) -> Settings:
    """A settings record from a checked node of the configuration, nested records included."""
    hints = get_type_hints(kind)
    values = {
        name: make_settings(hints[name], value) if is_dataclass(hints[name]) else value
        for name, value in node.items()
        if name != "_target_"
    }
    return kind(**values)
