"""The keys of conf/checkpoint/, and of conf/delivery/, none of which enters a signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.early_stopping import DIRECTIONS
from runner.config_key import setting

FOLDER_DELIVERY = "runner.serving.delivery.FolderDelivery"


@dataclass(frozen=True)
class MonitorSettings:
    """The metric that says which checkpoint is the best."""

    metric: str = setting("validation/auc", "split/metric, such as validation/log_loss")
    direction: str = setting("max", "max or min: what is better", choices=DIRECTIONS)


@dataclass(frozen=True)
class CheckpointSettings:
    """What is saved when, and which checkpoint evaluation and resume take."""

    save_every: int | str | None = setting(
        "5min",
        "updates, or '5000ex', '1ep', '30min'; null: only the best and the last are saved",
        interval="progress or time",
        signed="no",
    )
    keep: int = setting(
        2,
        "how many of the newest stay; the best one stays besides; 0: nothing is saved",
        ge=0,
        signed="no",
    )
    monitor: MonitorSettings = setting(
        MonitorSettings, "which metric decides what the best checkpoint is"
    )
    step: int | str = setting(
        "best",
        "best, last or the number of an update, for loop=eval",
        ge=0,
        choices=("best", "last"),
        note="the number of an update, or best, or last",
        signed="no",
    )
    accept_damaged_metrics: bool = setting(
        False,
        "resume although metrics.jsonl lost rows or was changed; holds for one command",
        signed="no",
    )
    optimizer_state: str = setting(
        "kept",
        "kept, or fresh: a resume without the optimizers' states; holds for one command",
        choices=("kept", "fresh"),
        signed="no",
    )
    path: str | None = setting(
        None, "a checkpoint folder, in place of a run directory", signed="no"
    )
    mirror: str | None = setting(
        None,
        "copy the run into an object store with each checkpoint: s3://bucket/runs/mine",
        pattern=r"(s3|gs)://[^/@:]+/.+",
        note="a URL such as s3://bucket/runs/mine, with a bucket and without credentials",
        signed="no",
    )
    init_from: str | None = setting(
        None, "a run directory, checkpoint folder or mirror whose weights a new run starts from"
    )
    init_names: dict[str, Any] | None = setting(
        None,
        "{ours: theirs}, names or their beginnings: {tables/item: tables/movie}; null there leaves "
        "a weight out",
        signed="when set",
    )
    init_tables: dict[str, Any] | None = setting(
        None, "single tables of other runs: {item: {from: DIR, table: movie}}", signed="when set"
    )
    init_optimizer: bool = setting(
        False, "also take the optimizers' states of the weights that are taken", signed="when set"
    )
    init_average: bool = setting(
        False,
        "take init_from's moving averages (trainer.ema) in place of its dense weights",
        signed="when set",
    )
    init_linear: bool = setting(
        False,
        "a new model=wide_and_deep starts as logistic (of a number linear) regression",
        signed="when set",
    )


@dataclass(frozen=True)
class DeliverySettings:
    """When a training writes what changed in its model, and where."""

    every: int | str | None = setting(
        None, "updates, or '5000ex', '1ep'; null: nothing is delivered", interval="progress"
    )
    to: str | None = setting(
        None, "the folder: full, a whole artifact, and a delta-STEP for each delivery"
    )
    rows_from: str | None = setting(
        None, "labelled rows on which full is compared with the model; null: the test split"
    )
