"""Typed settings of the groups that our code reads: one dataclass per group, one field per key.

A field (`runner.config_key.setting`) declares everything about its key. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar, get_type_hints

from runner.config.settings.checkpoint import FOLDER_DELIVERY as FOLDER_DELIVERY
from runner.config.settings.checkpoint import CheckpointSettings as CheckpointSettings
from runner.config.settings.checkpoint import DeliverySettings as DeliverySettings
from runner.config.settings.checkpoint import MonitorSettings as MonitorSettings
from runner.config.settings.loops import DEBUG_LOOP as DEBUG_LOOP
from runner.config.settings.loops import EVALUATE_LOOP as EVALUATE_LOOP
from runner.config.settings.loops import ONLINE_LOOP as ONLINE_LOOP
from runner.config.settings.loops import RESULT_SPLITS as RESULT_SPLITS
from runner.config.settings.loops import SPLITS as SPLITS
from runner.config.settings.loops import TRAIN_LOOP as TRAIN_LOOP
from runner.config.settings.loops import TUNE_BATCH_SIZE_LOOP as TUNE_BATCH_SIZE_LOOP
from runner.config.settings.loops import TUNE_LR_LOOP as TUNE_LR_LOOP
from runner.config.settings.loops import DebugLoopSettings as DebugLoopSettings
from runner.config.settings.loops import (
    EvaluateLoopSettings,
    OnlineLoopSettings,
    TrainLoopSettings,
    TuneBatchSizeSettings,
    TuneLrSettings,
)
from runner.config.settings.sweep import LauncherSettings as LauncherSettings
from runner.config.settings.sweep import RemoteSettings
from runner.config.settings.sweep import SearchSettings as SearchSettings
from runner.config.settings.trainer import LrScalingSettings as LrScalingSettings
from runner.config.settings.trainer import TrainerSettings as TrainerSettings
from runner.config_key import setting
from runner.embeddings.sharding_settings import ShardingSettings
from runner.metrics.settings import MetricSettings


@dataclass(frozen=True)
class RootSettings:
    """The keys of conf/config.yaml that belong to no group."""

    name: str | None = setting(
        None, "name of the run's folder under outputs/; null: <model>_<dataset>", signed="no"
    )
    seed: int = setting(
        0,
        "of the initial weights and the order of the examples, not of a dataset's splits",
        ge=0,
        lt=2**63,
    )
    run: str | None = setting(
        None,
        "a run directory, for loops that start from a run: loop=eval run=outputs/...",
        signed="no",
    )
    report: bool = setting(
        True,
        "write report.html (5 MB) when a run ends; a sweep writes one for all its jobs",
        signed="no",
    )


# Top-level node -> its settings; "" has the keys outside groups. Nodes that are not here take their
# keys and types from the option's YAML.
SETTINGS_BY_NODE: dict[str, type] = {
    "": RootSettings,
    "trainer": TrainerSettings,
    "checkpoint": CheckpointSettings,
    "delivery": DeliverySettings,
    "metrics": MetricSettings,
    "sharding": ShardingSettings,
    "search": SearchSettings,
    "launcher": LauncherSettings,
    "remote": RemoteSettings,
}
# The settings of a loop by the name in its `_target_`.
SETTINGS_BY_TARGET: dict[str, type] = {
    TRAIN_LOOP: TrainLoopSettings,
    EVALUATE_LOOP: EvaluateLoopSettings,
    ONLINE_LOOP: OnlineLoopSettings,
    DEBUG_LOOP: DebugLoopSettings,
    TUNE_BATCH_SIZE_LOOP: TuneBatchSizeSettings,
    TUNE_LR_LOOP: TuneLrSettings,
}
# Nodes with their own parsers, which give a reason for each refusal (config/rules/).
NODES_WITH_OWN_PARSER = (
    "optimizer.sparse",
    "optimizer.schedules.sparse",
    "optimizer.schedules.dense",
    "scheduler",
    "sharding.tables",
)
# Nodes with any number of `_target_` nodes, under names chosen by the user.
FREELY_NAMED_NODES = ("callbacks", "tracker")

Settings = TypeVar("Settings")


def make_settings(kind: type[Settings], node: Mapping[str, Any]) -> Settings:
    """Build a settings record, nested records included, from a checked node of a configuration."""
    hints = get_type_hints(kind)
    values = {
        name: make_settings(hints[name], value) if is_dataclass(hints[name]) else value
        for name, value in node.items()
        if name != "_target_"
    }
    return kind(**values)
