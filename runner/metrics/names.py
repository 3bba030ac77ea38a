"""The names of all metrics, the tasks they apply to, and their better direction.

It imports no torch, because the rules of the configuration use it before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.errors import ConfigError, nearest_hint

# metrics that need bins or users are not part of a MetricSet, see runner/metrics/factory.py
Needs = Literal["sums", "ranks", "groups", "bins", "users", "threshold", "lists"]


@dataclass(frozen=True)
class Metric:
    """The properties of a metric."""

    kind: Literal["binary", "regression"]  # of the tasks to which it applies; see `names_for_task`
    needs: Needs  # data of the rows that must be kept to compute it
    direction: Literal["max", "min", "one"]  # better values; one: those nearer to 1


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
    "rmse": Metric("regression", "sums", "min"),
    "r2": Metric("regression", "sums", "max"),
}
SEPARATE_METRICS: Mapping[str, Metric] = {
    "ece": Metric("binary", "bins", "min"),
    "mrr": Metric("binary", "users", "max"),
}
ROW_KEYS = ("split", "step", "examples")  # of a row of metrics.jsonl, besides its metrics
TRAIN_EVALUATION = "train_eval"  # an evaluation of the train split; "train" is measured in training
METRICS_AT_K = ("ndcg", "recall", "hit_rate")  # followed by a number, such as ndcg@10
# of the lists that a model recommends, and their better direction
LIST_METRICS: Mapping[str, Literal["max", "min"]] = {
    "coverage": "max",
    "novelty": "max",
    "gini": "min",
}
# a value of metrics.slice_by: rows by how often their item occurs in the train split
ITEM_POPULARITY = "item_popularity"
POPULARITY_LEVELS = ("cold", "rare", "middle", "popular")
METRICS_AT_THRESHOLD = ("precision", "recall", "f1")  # followed by a probability: recall@0.5
# models that rank all items, and their default metrics
RETRIEVAL_NETS = (
    "runner.models.bert4rec.BERT4Rec",
    "runner.models.gru4rec.GRU4Rec",
    "runner.models.hstu.HSTU",
    "runner.models.sasrec.SASRec",
    "runner.models.two_tower.TwoTower",
)
RETRIEVAL_METRICS = ("recall@10", "ndcg@10")


def evaluation_name(split: str) -> str:
    """Return the name of an evaluation of a split in files, trackers and tables.

    It is the split's own, except for the train split: `train` are the means over the updates of a
    window, in which the model changed.
    """
    return TRAIN_EVALUATION if split == "train" else split


def parse_cutoff(name: str) -> tuple[str, int | None]:
    """Split ndcg@10, or ndcg@10/click, into ('ndcg', 10).

    The cutoff is None if it is not an integer from 1.
    """
    kind, _, cutoff = split_task(name)[0].partition("@")
    return kind, int(cutoff) if cutoff.isdecimal() and int(cutoff) > 0 else None


def parse_threshold(name: str) -> tuple[str, float | None]:
    """Split f1@0.3 into ('f1', 0.3); None if that is not a decimal number between 0 and 1."""
    kind, _, text = name.partition("@")
    whole, point, digits = text.partition(".")
    is_decimal = point and whole in ("", "0") and digits.isdecimal() and float(f"0.{digits}") > 0
    return kind, float(f"0.{digits}") if is_decimal else None


def split_task(name: str) -> tuple[str, str]:
    """Split auc/click, the metric of one task, into ('auc', 'click'); the task in 'auc' is ''."""
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
    """Return the metric of a name, None if there is none."""
    try:
        return get_metric(name)
    except KeyError:
        return None


def check_names(key: str, names: Sequence[str]) -> None:
    """Check the names of a list of metrics.

    Args:
        key: of the list, for messages.

    Raises:
        ConfigError: naming the key, the value, the rule and the nearest valid name.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{key}={names!r} must be a list of metric names, such as [auc]")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"{key}: {name!r} is not the name of a metric; write names, such as [auc]"
            )
        if name == "loss":
            raise ConfigError(f"{key}: 'loss' is always measured; take it out of the list")
        if find_metric(name) is not None:
            continue
        kind, at_k, rules = name.partition("@")[0], (*METRICS_AT_K, *LIST_METRICS), []
        if kind in at_k:
            rules.append(f"a whole number from 1, such as '{kind}@10'")
        if kind in METRICS_AT_THRESHOLD:
            rules.append(f"a probability between 0 and 1, such as '{kind}@0.5'")
        if rules:
            raise ConfigError(f"{key}: {name!r} must end in {' or in '.join(rules)}")
        known = [*METRICS, *SEPARATE_METRICS, *(f"{kind}@10" for kind in at_k)]
        known += [f"{kind}@0.5" for kind in METRICS_AT_THRESHOLD]
        raise ConfigError(
            f"{key}: unknown metric {name!r}{nearest_hint(name, known)}; "
            f"there are: {', '.join(known)}"
        )
