"""The keys of conf/checkpoint/."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.config.early_stopping import DIRECTIONS
from runner.config_key import Key


@dataclass(frozen=True)
class MonitorSettings:
    """The metric that says which checkpoint is the best."""

    metric: Annotated[str, Key("split/metric, such as validation/log_loss")] = "validation/auc"
    direction: Annotated[str, Key("max or min: what is better", choices=DIRECTIONS)] = "max"


@dataclass(frozen=True)
class CheckpointSettings:
    """What is saved when, and which checkpoint evaluation and resume take."""

    save_every: Annotated[
        int | str | None,
        Key(
            "updates, or '5000ex', '1ep', '30min'; null: only the best and the last are saved",
            interval="progress or time",
            signed="no",
        ),
    ] = "5min"
    keep: Annotated[
        int,
        Key(
            "how many of the newest stay; the best one stays besides; 0: nothing is saved",
            ge=0,
            signed="no",
        ),
    ] = 2
    monitor: Annotated[MonitorSettings, Key("which metric decides what the best checkpoint is")] = (
        field(default_factory=MonitorSettings)
    )
    step: Annotated[
        int | str,
        Key(
            "best, last or the number of an update, for loop=eval",
            ge=0,
            choices=("best", "last"),
            note="the number of an update, or best, or last",
            signed="no",
        ),
    ] = "best"
    accept_damaged_metrics: Annotated[
        bool,
        Key(
            "resume although metrics.jsonl lost rows or was changed; holds for one command",
            signed="no",
        ),
    ] = False
    optimizer_state: Annotated[
        str,
        Key(
            "kept, or fresh: a resume without the optimizers' states; holds for one command",
            choices=("kept", "fresh"),
            signed="no",
        ),
    ] = "kept"
    path: Annotated[
        str | None, Key("a checkpoint folder, in place of a run directory", signed="no")
    ] = None
    mirror: Annotated[
        str | None,
        Key(
            "copy the run into an object store with each checkpoint: s3://bucket/runs/mine",
            pattern=r"(s3|gs)://[^/@:]+/.+",
            note="a URL such as s3://bucket/runs/mine, with a bucket and without credentials",
            signed="no",
        ),
    ] = None
    init_from: Annotated[
        str | None,
        Key("a run directory, checkpoint folder or mirror whose weights a new run starts from"),
    ] = None
    init_names: Annotated[
        dict[str, Any] | None,
        Key(
            "{ours: theirs}, names or their beginnings: {tables/item: tables/movie}; null there "
            "leaves a weight out",
            signed="when set",
        ),
    ] = None
    init_tables: Annotated[
        dict[str, Any] | None,
        Key("single tables of other runs: {item: {from: DIR, table: movie}}", signed="when set"),
    ] = None
    init_optimizer: Annotated[
        bool,
        Key("also take the optimizers' states of the weights that are taken", signed="when set"),
    ] = False
    init_average: Annotated[
        bool,
        Key(
            "take init_from's moving averages (trainer.ema) in place of its dense weights",
            signed="when set",
        ),
    ] = False
    init_linear: Annotated[
        bool,
        Key(
            "a new model=wide_and_deep starts as the logistic regression of the train rows",
            signed="when set",
        ),
    ] = False
