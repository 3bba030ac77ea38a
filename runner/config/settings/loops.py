"""The loops of our own by the names that `_target_` gives them, and the keys of conf/loop/."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from runner.config_key import Key
from runner.metrics.names import evaluation_name

TRAIN_LOOP = "runner.training.loops.train.train"
EVALUATE_LOOP = "runner.training.loops.evaluate.evaluate"
ONLINE_LOOP = "runner.training.loops.online.online"
DEBUG_LOOP = "runner.training.loops.debug.debug"
TUNE_BATCH_SIZE_LOOP = "runner.training.loops.tune_batch_size.tune_batch_size"
TUNE_LR_LOOP = "runner.training.loops.tune_lr.tune_lr"
SPLITS = ("train", "validation", "test")
RESULT_SPLITS = ("train", *map(evaluation_name, SPLITS))  # as results name them


@dataclass(frozen=True)
class TrainLoopSettings:
    """The keys of loop=train."""

    final_splits: Annotated[
        list[str], Key("evaluated once at the end with the best weights, if the dataset has them")
    ] = field(default_factory=lambda: ["test"])


@dataclass(frozen=True)
class EvaluateLoopSettings:
    """The keys of loop=eval."""

    split: Annotated[
        str | list[str] | None,
        Key(
            "name of a split, or a list of them; null: test if the dataset has it, else validation",
            choices=SPLITS,
        ),
    ] = None
    max_batches: Annotated[int | None, Key("null: the whole split", ge=1, unit="batches")] = None
    follow: Annotated[
        bool, Key("each new checkpoint of a training under way, into DIR/follow/<split>.jsonl")
    ] = False
    pick: Annotated[
        str,
        Key(
            "with follow: all checkpoints, or latest: only the newest at each look",
            choices=("all", "latest"),
        ),
    ] = "all"
    poll_s: Annotated[
        float, Key("with follow: seconds between two looks", gt=0, unit="seconds")
    ] = 5
    timeout_s: Annotated[
        float,
        Key(
            "with follow: ends when no checkpoint has come for so many seconds",
            gt=0,
            unit="seconds",
        ),
    ] = 3600


@dataclass(frozen=True)
class OnlineLoopSettings:
    """The keys of loop=online."""

    score: Annotated[
        str,
        Key(
            "before: by a forward of its own before the update; auto: by the update's own forward "
            "where that is exact, else as before",
            choices=("auto", "before"),
        ),
    ] = "auto"


@dataclass(frozen=True)
class DebugLoopSettings:
    """The keys of loop=debug: what to look at."""

    max_steps: Annotated[
        int, Key("updates, whatever the trainer's length", ge=1, unit="updates")
    ] = 5
    anomaly: Annotated[
        bool,
        Key("torch's anomaly detection: names the operation and line that made a NaN gradient"),
    ] = False
    statistics: Annotated[
        bool, Key("tables of the activations, gradients and table rows of the last update")
    ] = False
    overfit_one_batch: Annotated[
        bool, Key("train on the first batch over and over, and say whether the loss fell")
    ] = False
    stop_at_nonfinite: Annotated[
        bool, Key("stop at the first NaN or infinity, and name the module that made it")
    ] = True
    summary: Annotated[
        bool, Key("a table of modules: output shapes, parameters, share of the time")
    ] = False


@dataclass(frozen=True)
class TuneBatchSizeSettings:
    """The keys of loop=tune_batch_size."""

    start: Annotated[
        int,
        Key(
            "rows of one rank and micro-batch in the first trial; each next one has twice as many",
            ge=1,
            unit="rows",
        ),
    ] = 256
    updates: Annotated[
        int,
        Key(
            "timed in each trial, after one on the rows with the longest lists; the quickest "
            "counts",
            ge=3,
            note="fewer tell nothing",
            unit="updates",
        ),
    ] = 5
    fall_off: Annotated[
        float, Key("stop where the speed is this share below the best", ge=0, lt=1)
    ] = 0.05
    margin: Annotated[
        float,
        Key("stay this share below the smallest size that did not fit into memory", ge=0, lt=1),
    ] = 0.1
    max_batch_size: Annotated[
        int | None, Key("null: 65,536 on CPU, no limit on CUDA", ge=1, unit="rows")
    ] = None
    max_trials: Annotated[int, Key("doublings and bisections together", ge=1, unit="trials")] = 16
    then: Annotated[
        str | None,
        Key(
            "train: go on with the size found, in the same job and run directory",
            choices=("train",),
        ),
    ] = None


@dataclass(frozen=True)
class TuneLrSettings:
    """The keys of loop=tune_lr."""

    low: Annotated[float, Key("factor of the configured rates at the first update", gt=0)] = 0.001
    high: Annotated[float, Key("factor of the configured rates at the last update", gt=0)] = 1000.0
    updates: Annotated[
        int, Key("updates of the range test", ge=3, note="fewer tell nothing", unit="updates")
    ] = 100
    smoothing: Annotated[float, Key("of the loss: the share of what was before", ge=0, lt=1)] = 0.9
    diverged: Annotated[
        float, Key("stop where the smoothed loss is so many times its least", gt=1)
    ] = 4.0
    then: Annotated[
        str | None,
        Key(
            "train: go on with the suggestion, in the same job and run directory",
            choices=("train",),
        ),
    ] = None
