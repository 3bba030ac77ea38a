"""Names of all metrics and which of them are on. No torch here: rules look at it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runner.errors import ConfigError, nearest

Needs = Literal["sums", "ranks", "groups"]


@dataclass(frozen=True)
class Metric:
    """kind: of the tasks that it is for. needs: what must be kept to compute it."""

    kind: Literal["binary", "regression"]
    needs: Needs
    direction: Literal["max", "min", "one"]  # what is better; one: nearer to 1


METRICS: Mapping[str, Metric] = {
    "auc": Metric("binary", "ranks", "max"),
    "pr_auc": Metric("binary", "ranks", "max"),
    "gauc": Metric("binary", "groups", "max"),
    "gauc_unweighted": Metric("binary", "groups", "max"),
    "log_loss": Metric("binary", "sums", "min"),
    "normalized_entropy": Metric("binary", "sums", "min"),
    "rce": Metric("binary", "sums", "max"),
    "calibration": Metric("binary", "sums", "one"),
    "accuracy": Metric("binary", "sums", "max"),
    "mae": Metric("regression", "sums", "min"),
    "mse": Metric("regression", "sums", "min"),
}


@dataclass(frozen=True)
class MetricSettings:
    """The `metrics` group. `loss` is always on and stands in no list.

    Raises: ConfigError naming the key, the value, the rule and the nearest right name.
    """

    eval: Sequence[str]
    train: Sequence[str]
    exact_auroc_rows: int = 5_000_000
    group: str | None = None

    def __post_init__(self) -> None:
        for key, names in (("eval", self.eval), ("train", self.train)):
            _check_names(f"metrics.{key}", names)
        for name in self.train:
            if METRICS[name].needs == "groups":
                raise ConfigError(
                    f"metrics.train: {name!r} needs all rows of a pass, which training does not "
                    "keep; put it into metrics.eval"
                )
        if self.exact_auroc_rows < 0:
            raise ConfigError(
                f"metrics.exact_auroc_rows={self.exact_auroc_rows} must be 0 (always binned) "
                "or more"
            )


def _check_names(key: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{key}={names!r} must be a list of metric names, such as [auc]")
    for name in names:
        if name == "loss":
            raise ConfigError(f"{key}: 'loss' is always measured; take it out of the list")
        if name not in METRICS:
            raise ConfigError(
                f"{key}: unknown metric {name!r}{nearest(name, METRICS)}; "
                f"there are: {', '.join(METRICS)}"
            )


class TaskName(Protocol):
    """What is asked of a `TaskSpec` here."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


def check_groups(settings: MetricSettings, groups: Sequence[str]) -> int | None:
    """Which of a dataset's group columns grouped metrics go by; None if they are off.

    Raises: ConfigError if they are on and there is no such column.
    """
    wanted = [name for name in settings.eval if METRICS[name].needs == "groups"]
    if settings.group is not None and settings.group not in groups:
        raise ConfigError(
            f"metrics.group={settings.group!r} is no group column of the dataset"
            f"{nearest(settings.group, groups)}; it has: {', '.join(groups) or 'none'}"
        )
    if not wanted:
        return None
    if not groups:
        raise ConfigError(
            f"metrics.eval: {wanted[0]!r} needs a group column, and the dataset has none"
        )
    return 0 if settings.group is None else list(groups).index(settings.group)


def result_key(name: str, task: TaskName, tasks: Sequence[TaskName]) -> str:
    """`auc`, or `auc/<task>` where there are several tasks."""
    return name if len(tasks) == 1 else f"{name}/{task.name}"


def result_keys(names: Sequence[str], tasks: Sequence[TaskName]) -> list[str]:
    """What MetricSet.compute() returns for these, beside parts of the loss: for checks ahead."""
    found = ["loss"]
    for task in tasks:
        found += [result_key(n, task, tasks) for n in names if METRICS[n].kind == task.kind]
    return found
