"""The settings of the `metrics` group.

It imports no torch, because the rules of the configuration use it before torch is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from runner.config_key import setting
from runner.config_value import find_field_problems
from runner.errors import ConfigError, nearest_hint, raise_combined
from runner.metrics.names import (
    ITEM_POPULARITY,
    METRICS,
    ROW_KEYS,
    SEPARATE_METRICS,
    check_names,
    get_metric,
    parse_cutoff,
)

CANDIDATE_CHOICES = ("rows", "full")


@dataclass(frozen=True)
class MetricSettings:
    """The settings of the `metrics` group. The loss is always measured and is in no list.

    Raises:
        ConfigError: naming the key, the value, the rule and the nearest valid name.
    """

    eval: Sequence[str] = setting(
        MISSING,
        "Further metrics are precision@T, recall@T and f1@T, whose threshold T is a probability "
        "such as 0.5; ece; the rankings of each user's rows: mrr, ndcg@K, recall@K and hit_rate@K, "
        "for any whole K; and, with candidates: full, coverage@K, novelty@K and gini@K of the "
        "lists. A metric is measured for tasks of its kind (mae, mse, rmse and r2 for regression, "
        "others for binary, and rankings for regression where no task is binary), or for one "
        "task: auc/click, ndcg@10/rating. log_loss, accuracy, normalized_entropy and rce of a "
        "label of classes are of all of them: log_loss/action",
    )
    train: Sequence[str] = setting(
        MISSING, "those of the train rows since the last line of the log"
    )
    own: dict[str, Any] = setting(
        dict,
        "Metrics of one's own, in evaluations: {mcc: {_target_: CLASS of torchmetrics, tasks: "
        "null, ...}}; a list of tasks chooses among them",
        signed="when set",
    )
    exact_auroc_rows: int = setting(
        5_000_000,
        "Up to so many rows of a split, over all ranks, auc and pr_auc are exact. With more they "
        "are binned, and a bound of the error is printed. A row takes 4 + 8 bytes a task on the "
        "device (8 more with gauc) and 77 on the host while metrics are computed; 5 million rows "
        "take 60 MB and 0.4 GB, and 1 s",
        ge=0,
        unit="rows",
        note="0: always binned",
    )
    group: str | None = setting(
        None,
        "the column that groups the rows for gauc and gauc_unweighted; null: the dataset's first",
    )
    candidates: str = setting(
        "rows",
        "Rankings order a user's rows of the split (`rows`, with as many negatives as there are), "
        "or each row of label 1 among all items (`full`, for models that find items: bert4rec, "
        "gru4rec, hstu, sasrec, two_tower)",
        choices=CANDIDATE_CHOICES,
    )
    leave_history_out: bool = setting(
        True, "with full: items of the row's own history are not ranked"
    )
    leave_seen_out: bool = setting(
        False,
        "with full: nor is any item that the user has seen in the train split or before the row, "
        "however long ago; for data of `interactions`, in evaluations of held-out splits",
        signed="when set",
    )
    per_event: bool = setting(
        False,
        "with full: rankings are means over the rows of label 1; false: over users, each of whom "
        "counts alike",
        signed="when set",
    )
    relevant_from: float | None = setting(
        None,
        "the label from which a row is a right one of mrr, recall@K and hit_rate@K where labels "
        "are numbers, such as grades from 0 to 4 (null: 1); ndcg@K takes the grades themselves",
        signed="when set",
    )
    slice_by: str | None = setting(
        None,
        "a column of ids or groups; an evaluation also has all metrics for each of its values. "
        "item_popularity: rows by how often their item occurs in the train split, cold ones apart",
    )
    max_slices: int = setting(50, "more values of it in the validation split are an error", ge=1)
    hardest_rows: int = setting(
        0,
        "so many rows of a split, those with the largest loss, are listed by their number in "
        "hardest.json and in the report: of validation at the best evaluation, and of each split "
        "that is evaluated at the end or by loop=eval; 0: none",
        ge=0,
        le=10_000,
        unit="rows",
        signed="no",
    )
    ece_bins: int = setting(15, "of ece; they are equal parts of [0, 1]", ge=1, le=10_000)

    def __post_init__(self) -> None:
        for key, names in (("eval", self.eval), ("train", self.train)):
            check_names(f"metrics.{key}", names)
        used_names = ["loss", *METRICS, *SEPARATE_METRICS, *ROW_KEYS]
        for name in self.own:
            if not name.isidentifier() or name in used_names:
                raise ConfigError(
                    f"metrics.own.{name}: names a new metric: letters, digits and _, and none of "
                    f"ours: {', '.join(used_names)}"
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
                    f"metrics.{key}=true: is about rankings of all items; add "
                    "metrics.candidates=full, for models that find items (two_tower, sasrec)"
                )
        for name in self.list_metrics:
            if self.candidates != "full":
                raise ConfigError(
                    f"metrics.eval: {name!r} is about lists of all items; add "
                    "metrics.candidates=full, for models that find items (two_tower, sasrec)"
                )
        raise_combined(find_field_problems(self, "metrics."))

    @property
    def ranking_metrics(self) -> tuple[str, ...]:
        """The ranking metrics of an evaluation."""
        return tuple(name for name in self.eval if get_metric(name).needs == "users")

    @property
    def ranks_full_catalogue(self) -> bool:
        """Whether evaluation ranks against all items."""
        return self.candidates == "full" and bool(self.ranking_metrics or self.list_metrics)

    @property
    def list_metrics(self) -> tuple[str, ...]:
        """The metrics of recommended lists in an evaluation."""
        return tuple(name for name in self.eval if get_metric(name).needs == "lists")

    @property
    def list_length(self) -> int:
        """The required length of the lists; 0 for none."""
        return max((parse_cutoff(name)[1] or 0 for name in self.list_metrics), default=0)

    @property
    def needs_item_popularity(self) -> bool:
        """Whether items are counted over the train split for an evaluation."""
        return bool(self.list_metrics) or self.slice_by == ITEM_POPULARITY


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
            f"metrics.eval: {grouped[0]!r} needs a group column, and the dataset has none; "
            "`groups: [COLUMN]` in its schema declares one"
        )
    return 0 if settings.group is None else list(groups).index(settings.group)


def check_slice_column(
    settings: MetricSettings, groups: Sequence[str], features: Sequence[str]
) -> None:
    """Check that the column for slicing is a group column or a feature of ids.

    Args:
        settings: slicing may be off.
        groups: names of the dataset's group columns.
        features: names of its features of ids.

    Raises:
        ConfigError: naming the nearest column.
    """
    name, known = settings.slice_by, list(dict.fromkeys((*groups, *features, ITEM_POPULARITY)))
    if name is not None and name not in known:
        raise ConfigError(
            f"metrics.slice_by={name}: no group column and no column of ids"
            f"{nearest_hint(name, known)}; there are {', '.join(known) or 'none'}"
        )
