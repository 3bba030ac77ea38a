"""The names of all metrics, and the settings of the `metrics` group.

It imports no torch, because the rules of configuration use it before torch is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runner.errors import ConfigError, nearest_hint

# metrics that need bins or users are not part of a MetricSet, see runner/metrics/factory.py
Needs = Literal["sums", "ranks", "groups", "bins", "users"]


@dataclass(frozen=True)
class Metric:
    """The properties of a metric."""

    kind: Literal["binary", "regression"]  # of the tasks that it is for
    needs: Needs  # what must be kept of the rows to compute it
    direction: Literal["max", "min", "one"]  # which values are better; one: those nearer to 1


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
SEPARATE_METRICS: Mapping[str, Metric] = {
    "ece": Metric("binary", "bins", "min"),
    "mrr": Metric("binary", "users", "max"),
}
METRICS_AT_K = ("ndcg", "recall", "hit_rate")  # followed by a number, such as ndcg@10
CANDIDATE_CHOICES = ("rows", "full")


TRAIN_EVALUATION = "train_eval"


def evaluation_name(split: str) -> str:
    """Return the name that files, trackers and tables give to an evaluation of a split.

    It is the split's own, but for the train split: `train` are the means over the updates of a
    window, in which the model changed.
    """
    return TRAIN_EVALUATION if split == "train" else split


def parse_cutoff(name: str) -> tuple[str, int | None]:
    """Split ndcg@10 into ('ndcg', 10); the cutoff is None if it is not a whole number from 1."""
    kind, _, cutoff = name.partition("@")
    return kind, int(cutoff) if cutoff.isdecimal() and int(cutoff) > 0 else None


def get_metric(name: str) -> Metric:
    """Return the metric of a name.

    Raises:
        KeyError: if there is no such metric.
    """
    kind, cutoff = parse_cutoff(name)
    if kind in METRICS_AT_K and cutoff is not None:
        return Metric("binary", "users", "max")
    return METRICS[name] if name in METRICS else SEPARATE_METRICS[name]


def find_metric(name: str) -> Metric | None:
    """Return the metric of a name, None if there is no such metric."""
    try:
        return get_metric(name)
    except KeyError:
        return None


@dataclass(frozen=True)
class MetricSettings:
    """The settings of the `metrics` group. The loss is always measured and is in no list.

    Raises:
        ConfigError: naming the key, the value, the rule and the nearest right name.
    """

    eval: Sequence[str]
    train: Sequence[str]
    exact_auroc_rows: int = 5_000_000
    group: str | None = None
    candidates: str = "rows"
    leave_history_out: bool = True
    slice_by: str | None = None
    max_slices: int = 50
    ece_bins: int = 15

    def __post_init__(self) -> None:
        for key, names in (("eval", self.eval), ("train", self.train)):
            _check_names(f"metrics.{key}", names)
        for name in self.train:
            if get_metric(name).needs in ("groups", "users"):
                raise ConfigError(
                    f"metrics.train: {name!r} needs all rows of a pass, which training does not "
                    "keep; put it into metrics.eval"
                )
        if self.exact_auroc_rows < 0:
            raise ConfigError(
                f"metrics.exact_auroc_rows={self.exact_auroc_rows} must be 0 (always binned) "
                "or more"
            )
        if self.candidates not in CANDIDATE_CHOICES:
            raise ConfigError(
                f"metrics.candidates={self.candidates}: one of {', '.join(CANDIDATE_CHOICES)}"
                f"{nearest_hint(str(self.candidates), CANDIDATE_CHOICES)}"
            )
        for key in ("max_slices", "ece_bins"):
            if getattr(self, key) < 1:
                raise ConfigError(f"metrics.{key}={getattr(self, key)} must be at least 1")

    @property
    def ranking_metrics(self) -> tuple[str, ...]:
        """The metrics of rankings that an evaluation measures."""
        return tuple(name for name in self.eval if get_metric(name).needs == "users")

    @property
    def ranks_full_catalogue(self) -> bool:
        """Whether evaluation ranks against all items."""
        return self.candidates == "full" and bool(self.ranking_metrics)


def _check_names(key: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{key}={names!r} must be a list of metric names, such as [auc]")
    for name in names:
        if name == "loss":
            raise ConfigError(f"{key}: 'loss' is always measured; take it out of the list")
        if name.partition("@")[0] in METRICS_AT_K and find_metric(name) is None:
            raise ConfigError(
                f"{key}: {name!r} must end in a whole number from 1, such as "
                f"'{name.partition('@')[0]}@10'"
            )
        if find_metric(name) is None:
            known = [*METRICS, *SEPARATE_METRICS, *(f"{kind}@10" for kind in METRICS_AT_K)]
            raise ConfigError(
                f"{key}: unknown metric {name!r}{nearest_hint(name, known)}; "
                f"there are: {', '.join(known)}"
            )


class TaskLike(Protocol):
    """What this module needs of a `TaskSpec`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


def find_group_column(settings: MetricSettings, groups: Sequence[str]) -> int | None:
    """Return the index of the group column that grouped metrics use, None if there are none.

    Args:
        groups: names of the dataset's group columns.

    Raises:
        ConfigError: if there are grouped metrics but no such column.
    """
    grouped = [name for name in settings.eval if get_metric(name).needs == "groups"]
    grouped += [] if settings.candidates == "full" else settings.ranking_metrics
    if settings.group is not None and settings.group not in groups:
        raise ConfigError(
            f"metrics.group={settings.group!r} is not a group column of the dataset"
            f"{nearest_hint(settings.group, groups)}; it has: {', '.join(groups) or 'none'}"
        )
    if not grouped:
        return None
    if not groups:
        raise ConfigError(
            f"metrics.eval: {grouped[0]!r} needs a group column, and the dataset has none"
        )
    return 0 if settings.group is None else list(groups).index(settings.group)


def result_key(name: str, task: TaskLike, tasks: Sequence[TaskLike]) -> str:
    """Return the key of a result: `auc`, or `auc/<task>` if there are several tasks."""
    return name if len(tasks) == 1 else f"{name}/{task.name}"


def result_keys(names: Sequence[str], tasks: Sequence[TaskLike]) -> list[str]:
    """Return the keys of what `MetricSet.compute` will return, without parts of the loss."""
    results = {"loss": 0.0}
    for task in tasks:
        keys = [result_key(n, task, tasks) for n in names if get_metric(n).kind == task.kind]
        results |= dict.fromkeys(keys, 0.0)
    return list(add_task_means(results, names, tasks))


def add_task_means(
    results: Mapping[str, float], names: Sequence[str], tasks: Sequence[TaskLike]
) -> dict[str, float]:
    """Add the mean of each metric over the tasks, `auc` to `auc/click` and `auc/buy`.

    So there is one number to go by, for example for a checkpoint's monitor.
    """
    extended = dict(results)
    if len(tasks) > 1:
        for name in names:
            keys = [result_key(name, task, tasks) for task in tasks]
            values = [results[key] for key in keys if key in results]
            if values:
                extended[name] = sum(values) / len(values)
    return extended
