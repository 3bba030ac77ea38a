"""The loops of our own by the names that `_target_` gives them, and the keys of conf/loop/."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from runner.config_key import setting
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

    final_splits: list[str] = setting(
        lambda: ["test"],
        "evaluated once at the end with the best weights, if the dataset has them",
        choices=SPLITS,
    )


@dataclass(frozen=True)
class EvaluateLoopSettings:
    """The keys of loop=eval."""

    split: str | list[str] | None = setting(
        None,
        "name of a split, or a list of them; null: test if the dataset has it, else validation",
        choices=SPLITS,
    )
    max_batches: int | None = setting(None, "null: the whole split", ge=1, unit="batches")
    follow: bool = setting(
        False, "each new checkpoint of a training under way, into DIR/follow/<split>.jsonl"
    )
    pick: str = setting(
        "all",
        "with follow: all checkpoints, or latest: only the newest at each look",
        choices=("all", "latest"),
    )
    poll_s: float = setting(5, "with follow: seconds between two looks", gt=0, unit="seconds")
    timeout_s: float = setting(
        3600,
        "with follow: ends when no checkpoint has come for so many seconds",
        gt=0,
        unit="seconds",
    )


def judged_splits(split: str | list[str] | None, known: Container[str]) -> list[str]:
    """Return the splits that `loop.split` of an evaluation selects, among those of a dataset."""
    chosen = split or ("test" if "test" in known else "validation")
    return [chosen] if isinstance(chosen, str) else list(chosen)


@dataclass(frozen=True)
class OnlineLoopSettings:
    """The keys of loop=online."""

    score: str = setting(
        "auto",
        "before: by a separate forward pass before the update; auto: by that of the update "
        "where it gives the same scores, else as before",
        choices=("auto", "before"),
    )


@dataclass(frozen=True)
class DebugLoopSettings:
    """The keys of loop=debug: what to look at."""

    max_steps: int = setting(5, "updates, whatever the trainer's length", ge=1, unit="updates")
    anomaly: bool = setting(
        False, "torch's anomaly detection: names the operation and line that made a NaN gradient"
    )
    statistics: bool = setting(
        False, "tables of the activations, gradients and table rows of the last update"
    )
    overfit_one_batch: bool = setting(
        False, "train on the first batch over and over, and say whether the loss fell"
    )
    stop_at_nonfinite: bool = setting(
        True, "stop at the first NaN or infinity, and name the module that made it"
    )
    summary: bool = setting(
        False, "a table of modules: output shapes, parameters, share of the time"
    )


@dataclass(frozen=True)
class TuneBatchSizeSettings:
    """The keys of loop=tune_batch_size."""

    start: int = setting(
        256,
        "rows of one rank and micro-batch in the first trial; each next one has twice as many",
        ge=1,
        unit="rows",
    )
    updates: int = setting(
        5,
        "timed in each trial, after one on the rows with the longest lists; the quickest counts",
        ge=3,
        note="fewer tell nothing",
        unit="updates",
    )
    fall_off: float = setting(0.05, "stop where the speed is this share below the best", ge=0, lt=1)
    margin: float = setting(
        0.1, "stay this share below the smallest size that did not fit into memory", ge=0, lt=1
    )
    max_batch_size: int | None = setting(
        None, "null: 65,536 on CPU, no limit on CUDA", ge=1, unit="rows"
    )
    max_trials: int = setting(16, "doublings and bisections together", ge=1, unit="trials")
    then: str | None = setting(
        None,
        "train: go on with the size found, in the same job and run directory",
        choices=("train",),
    )


@dataclass(frozen=True)
class TuneLrSettings:
    """The keys of loop=tune_lr."""

    low: float = setting(0.001, "factor of the configured rates at the first update", gt=0)
    high: float = setting(1000.0, "factor of the configured rates at the last update", gt=0)
    updates: int = setting(
        100, "updates of the range test", ge=3, note="fewer tell nothing", unit="updates"
    )
    smoothing: float = setting(0.9, "of the loss: the share of what was before", ge=0, lt=1)
    diverged: float = setting(4.0, "stop where the smoothed loss is so many times its least", gt=1)
    then: str | None = setting(
        None,
        "train: go on with the suggestion, in the same job and run directory",
        choices=("train",),
    )
