"""The names of all metrics, and the settings of the `metrics` group.

It imports no torch, because the rules of configuration use it before torch is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from runner.config_key import Key, find_field_problems
from runner.errors import ConfigError, nearest_hint, raise_combined

# metrics that need bins or users are not part of a MetricSet, see runner/metrics/factory.py
Needs = Literal["sums", "ranks", "groups", "bins", "users", "threshold", "lists"]


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
TRAIN_EVALUATION = "train_eval"  # an evaluation of the train split; "train" is what training saw
METRICS_AT_K = ("ndcg", "recall", "hit_rate")  # followed by a number, such as ndcg@10
# of the lists that a model recommends, and which values are better
LIST_METRICS: Mapping[str, Literal["max", "min"]] = {
    "coverage": "max",
    "novelty": "max",
    "gini": "min",
}
# a value of metrics.slice_by: rows by how often their item occurs in the train split
ITEM_POPULARITY = "item_popularity"
POPULARITY_LEVELS = ("cold", "rare", "middle", "popular")
METRICS_AT_THRESHOLD = ("precision", "recall", "f1")  # followed by a probability: recall@0.5
# models that rank all items, and what they are measured by where nobody says otherwise
RETRIEVAL_NETS = (
    "runner.models.bert4rec.BERT4Rec",
    "runner.models.gru4rec.GRU4Rec",
    "runner.models.hstu.HSTU",
    "runner.models.sasrec.SASRec",
    "runner.models.two_tower.TwoTower",
)
RETRIEVAL_METRICS = ("recall@10", "ndcg@10")
CANDIDATE_CHOICES = ("rows", "full")


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


def parse_threshold(name: str) -> tuple[str, float | None]:
    """Split f1@0.3 into ('f1', 0.3); None if that is no number between 0 and 1 with a point."""
    kind, _, text = name.partition("@")
    whole, point, digits = text.partition(".")
    is_decimal = point and whole in ("", "0") and digits.isdecimal() and float(f"0.{digits}") > 0
    return kind, float(f"0.{digits}") if is_decimal else None


def split_task(name: str) -> tuple[str, str]:
    """Split auc/click, the metric of one task, into ('auc', 'click'); 'auc' is that of all: ''."""
    base, _, task = name.partition("/")
    return base, task


def get_metric(name: str) -> Metric:
    """Return the metric of a name, with or without a task.

    Raises:
        KeyError: if there is no such metric.
    """
    name, _ = split_task(name)
    kind, cutoff = parse_cutoff(name)
    if kind in METRICS_AT_K and cutoff is not None:
        return Metric("binary", "users", "max")
    if kind in LIST_METRICS and cutoff is not None:
        return Metric("binary", "lists", LIST_METRICS[kind])
    if kind in METRICS_AT_THRESHOLD and parse_threshold(name)[1] is not None:
        return Metric("binary", "threshold", "max")
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

    eval: Annotated[
        Sequence[str],
        Key(
            "Further metrics are precision@T, recall@T and f1@T, whose threshold T is a "
            "probability such as 0.5; ece; the rankings of each user's rows: mrr, ndcg@K, "
            "recall@K and hit_rate@K, for any whole K; and, with candidates: full, coverage@K, "
            "novelty@K and gini@K of the lists. A metric is measured for tasks of its kind "
            "(mae and mse for regression, others for binary), or for one task: auc/click"
        ),
    ]
    train: Annotated[Sequence[str], Key("those of the train rows since the last line of the log")]
    own: Annotated[
        dict[str, Any],
        Key(
            "Metrics of one's own, in evaluations: {mcc: {_target_: CLASS of torchmetrics, tasks: "
            "null, ...}}; a list of tasks chooses among them",
            signed="when set",
        ),
    ] = field(default_factory=dict)
    exact_auroc_rows: Annotated[
        int,
        Key(
            "Up to so many rows of a split on each rank, auc and pr_auc are exact. With more they "
            "are binned, and a bound of the error is printed. A row takes 4 + 8 bytes a task on "
            "the device (8 more with gauc) and 60 on the host while metrics are computed; 5 "
            "million rows take 60 MB and 0.3 GB, and 2 s",
            ge=0,
            unit="rows",
            note="0: always binned",
        ),
    ] = 5_000_000
    group: Annotated[
        str | None,
        Key(
            "the column that groups the rows for gauc and gauc_unweighted; null: the dataset's "
            "first"
        ),
    ] = None
    candidates: Annotated[
        str,
        Key(
            "Rankings order a user's rows of the split (`rows`, with as many negatives as there "
            "are), or each row of label 1 among all items (`full`, for models that find items: "
            "bert4rec, gru4rec, hstu, sasrec, two_tower)",
            choices=CANDIDATE_CHOICES,
        ),
    ] = "rows"
    leave_history_out: Annotated[
        bool, Key("with full: items of the row's own history are not ranked")
    ] = True
    leave_seen_out: Annotated[
        bool,
        Key(
            "with full: nor is any item that the user has seen in the train split or before the "
            "row, however long ago; for data of `interactions`, in evaluations of held-out splits",
            signed="when set",
        ),
    ] = False
    per_event: Annotated[
        bool,
        Key(
            "with full: rankings are means over the rows of label 1; false: over users, each of "
            "whom counts alike",
            signed="when set",
        ),
    ] = False
    slice_by: Annotated[
        str | None,
        Key(
            "a column of ids or groups; an evaluation also has all metrics for each of its values. "
            "item_popularity: rows by how often their item occurs in the train split, cold ones "
            "apart"
        ),
    ] = None
    max_slices: Annotated[
        int, Key("more values of it in the validation split are an error", ge=1)
    ] = 50
    ece_bins: Annotated[int, Key("of ece; they are equal parts of [0, 1]", ge=1, le=10_000)] = 15

    def __post_init__(self) -> None:
        for key, names in (("eval", self.eval), ("train", self.train)):
            _check_names(f"metrics.{key}", names)
        for name in self.own:
            if not name.isidentifier() or name == "loss" or find_metric(name) is not None:
                raise ConfigError(
                    f"metrics.own.{name}: names a new metric: letters, digits and _, and none of "
                    f"ours: {', '.join(['loss', *METRICS, *SEPARATE_METRICS])}"
                )
        for name in self.train:
            if get_metric(name).needs in ("groups", "users", "lists"):
                raise ConfigError(
                    f"metrics.train: {name!r} needs all rows of a pass, which training does not "
                    "keep; put it into metrics.eval"
                )
        for key in ("leave_seen_out", "per_event"):
            if getattr(self, key) and self.candidates != "full":
                raise ConfigError(
                    f"metrics.{key}=true: is about rankings of all items: "
                    "metrics.candidates=full, for models that find items"
                )
        for name in self.list_metrics:
            if self.candidates != "full":
                raise ConfigError(
                    f"metrics.eval: {name!r} is about lists of all items: metrics.candidates=full, "
                    "for models that find items"
                )
        raise_combined(find_field_problems(self, "metrics."))

    @property
    def ranking_metrics(self) -> tuple[str, ...]:
        """The metrics of rankings that an evaluation measures."""
        return tuple(name for name in self.eval if get_metric(name).needs == "users")

    @property
    def ranks_full_catalogue(self) -> bool:
        """Whether evaluation ranks against all items."""
        return self.candidates == "full" and bool(self.ranking_metrics or self.list_metrics)

    @property
    def list_metrics(self) -> tuple[str, ...]:
        """The metrics of recommended lists that an evaluation measures."""
        return tuple(name for name in self.eval if get_metric(name).needs == "lists")

    @property
    def list_length(self) -> int:
        """The length of the lists that are needed; 0 for none."""
        return max((parse_cutoff(name)[1] or 0 for name in self.list_metrics), default=0)

    @property
    def needs_item_popularity(self) -> bool:
        """Whether items are counted over the train split for an evaluation."""
        return bool(self.list_metrics) or self.slice_by == ITEM_POPULARITY


def _check_names(key: str, names: Sequence[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{key}={names!r} must be a list of metric names, such as [auc]")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{key}: {name!r} is not the name of a metric")
        if name == "loss":
            raise ConfigError(f"{key}: 'loss' is always measured; take it out of the list")
        kind = name.partition("@")[0]
        if kind in (*METRICS_AT_K, *LIST_METRICS, *METRICS_AT_THRESHOLD) and not find_metric(name):
            ends = [((*METRICS_AT_K, *LIST_METRICS), "a whole number from 1", "10")]
            ends += [(METRICS_AT_THRESHOLD, "a probability between 0 and 1", "0.5")]
            rules = " or in ".join(
                f"{what}, such as '{kind}@{example}'"
                for kinds, what, example in ends
                if kind in kinds
            )
            raise ConfigError(f"{key}: {name!r} must end in {rules}")
        if find_metric(name) is None:
            known = [
                *METRICS,
                *SEPARATE_METRICS,
                *(f"{kind}@10" for kind in (*METRICS_AT_K, *LIST_METRICS)),
            ]
            known += [f"{kind}@0.5" for kind in METRICS_AT_THRESHOLD]
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


def check_slice_column(
    settings: MetricSettings, groups: Sequence[str], features: Sequence[str]
) -> None:
    """Check that the column that metrics are sliced by is one of groups or ids.

    Args:
        settings: may slice by none.
        groups: names of the dataset's group columns.
        features: names of its features of ids.

    Raises:
        ConfigError: naming the nearest column.
    """
    name, known = settings.slice_by, [*groups, *features, ITEM_POPULARITY]
    if name is not None and name not in known:
        raise ConfigError(
            f"metrics.slice_by={name}: no group column and no column of ids"
            f"{nearest_hint(name, known)}; there are {', '.join(known) or 'none'}"
        )


def measured_names(settings: Mapping[str, Any], key: str = "eval") -> list[str]:
    """Return the names, without tasks, of what a list of the group `metrics` measures.

    Args:
        settings: of the group, as in the configuration.
        key: eval or train.
    """
    names = [split_task(name)[0] for name in settings.get(key, [])]
    own = (settings.get("own") or {}) if key == "eval" else {}
    return list(dict.fromkeys(["loss", *names, *own]))


def names_for_task(names: Sequence[str], task: TaskLike) -> list[str]:
    """Return those of the metrics that are measured for a task, without its name."""
    found = []
    for name in names:
        base, chosen = split_task(name)
        if chosen in ("", task.name) and get_metric(base).kind == task.kind:
            found.append(base)
    return list(dict.fromkeys(found))


def check_tasks(key: str, names: Sequence[str], tasks: Sequence[TaskLike]) -> None:
    """Check that metrics of one task name a task of the dataset that they can be measured for.

    Args:
        key: of the list, for the message.
        names: of metrics.
        tasks: of the dataset.

    Raises:
        ConfigError: for an unknown task, or one of another kind.
    """
    kinds = {task.name: task.kind for task in tasks}
    for name in names:
        base, task = split_task(name)
        if not task:
            continue
        if task not in kinds:
            raise ConfigError(
                f"{key}: {name!r}: the dataset has no task {task!r}{nearest_hint(task, kinds)}; "
                f"there are {', '.join(kinds)}"
            )
        if get_metric(base).kind != kinds[task]:
            raise ConfigError(f"{key}: {name!r}: {task} is a {kinds[task]} task")


def result_key(name: str, task: TaskLike, tasks: Sequence[TaskLike]) -> str:
    """Return the key of a result: `auc`, or `auc/<task>` if there are several tasks."""
    return name if len(tasks) == 1 else f"{name}/{task.name}"


def result_keys(names: Sequence[str], tasks: Sequence[TaskLike]) -> list[str]:
    """Return the keys of what `MetricSet.compute` will return, without parts of the loss."""
    results = {"loss": 0.0}
    for task in tasks:
        keys = [result_key(n, task, tasks) for n in names_for_task(names, task)]
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
        for name in dict.fromkeys(split_task(name)[0] for name in names):
            keys = [result_key(name, task, tasks) for task in tasks]
            values = [results[key] for key in keys if key in results]
            if values:
                extended[name] = sum(values) / len(values)
    return extended
