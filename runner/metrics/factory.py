"""Makes the metrics of a pass from their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runner.batch import Prediction, Schema
from runner.metrics.calibration import CalibrationError
from runner.metrics.lists import RecommendedLists
from runner.metrics.metric_set import MetricSet
from runner.metrics.names import ITEM_POPULARITY, METRICS, POPULARITY_LEVELS, get_metric, split_task
from runner.metrics.own import OwnMetric, OwnMetrics
from runner.metrics.protocol import Metrics
from runner.metrics.ranking import PerUserMetrics
from runner.metrics.result_keys import check_tasks
from runner.metrics.settings import MetricSettings, find_group_column
from runner.metrics.slices import SlicedMetrics, ValueNamer
from runner.metrics.threshold import ThresholdMetrics


def make_metrics(
    schema: Schema,
    device: torch.device,
    settings: MetricSettings,
    exact: bool,
    *,
    own: Sequence[OwnMetric] = (),
    name_values: ValueNamer | None = None,
) -> Metrics:
    """Make the metrics of a pass over a split.

    Args:
        exact: True for an evaluation, False for the cheap metrics of training.
        own: the metrics of `metrics.own`, for evaluations.
        name_values: returns names for values by which rows are sliced; see
            `Dataset.name_values`. None: they have no names.

    Raises:
        ConfigError: if metrics need a column or a task that the dataset does not have.
    """
    for key, names in (("metrics.eval", settings.eval), ("metrics.train", settings.train)):
        check_tasks(key, names, schema.tasks)
    metrics = _make_unsliced(schema, device, settings, exact, own)
    if not exact or settings.slice_by is None:
        return metrics
    of_slice = replace(settings, eval=[n for n in settings.eval if n not in settings.list_metrics])
    if settings.slice_by == ITEM_POPULARITY:
        name_values = lambda column, values: dict(enumerate(POPULARITY_LEVELS))
    slices = SlicedMetrics(
        lambda: _make_unsliced(schema, device, of_slice, exact, own), settings.slice_by, name_values
    )
    return MetricCollection(metrics, {"slices": slices})


def _make_unsliced(
    schema: Schema,
    device: torch.device,
    settings: MetricSettings,
    exact: bool,
    own: Sequence[OwnMetric],
) -> Metrics:
    find_group_column(settings, schema.groups)
    set_settings = replace(
        settings,
        eval=[name for name in settings.eval if split_task(name)[0] in METRICS],
        train=[name for name in settings.train if split_task(name)[0] in METRICS],
    )
    first = MetricSet(
        schema.tasks, exact=exact, device=device, settings=set_settings, groups=schema.groups
    )
    others: dict[str, Metrics] = {}
    names = settings.eval if exact else settings.train
    if ece := [name for name in names if split_task(name)[0] == "ece"]:
        bins = settings.ece_bins
        others["ece"] = CalibrationError(ece, schema.tasks, num_bins=bins, device=device)
    if at_threshold := [name for name in names if get_metric(name).needs == "threshold"]:
        others["threshold"] = ThresholdMetrics(at_threshold, schema.tasks, device=device)
    if exact and own:
        others["own"] = OwnMetrics(own, schema.tasks, device=device)
    if exact and settings.ranking_metrics:
        others["users"] = PerUserMetrics(
            settings.ranking_metrics,
            schema.tasks,
            group=_find_user_column(settings, schema),
            full=settings.candidates == "full",
            row_limit=settings.exact_auroc_rows,
            device=device,
            relevant_from=1.0 if settings.relevant_from is None else settings.relevant_from,
        )
    if exact and settings.list_metrics:
        others["lists"] = RecommendedLists(settings.list_metrics, schema.tasks, device=device)
    return MetricCollection(first, others) if others else first


def _find_user_column(settings: MetricSettings, schema: Schema) -> int | None:
    """Return the index of the users' column; None: each row of label 1 is ranked separately."""
    if settings.per_event or not schema.groups:
        return None
    return 0 if settings.group is None else list(schema.groups).index(settings.group)


class MetricCollection:
    """Sets of metrics that are updated together. Implements `Metrics`.

    The tensors of the first set's state keep their names, those of the others are prefixed.
    """

    def __init__(self, first: Metrics, others: Mapping[str, Metrics]) -> None:
        self._by_prefix: dict[str, Metrics] = {"": first}
        self._by_prefix |= {f"{name}/": metrics for name, metrics in others.items()}

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        for metrics in self._by_prefix.values():
            metrics.update(prediction, losses)

    def compute(self) -> dict[str, float]:
        return {k: v for metrics in self._by_prefix.values() for k, v in metrics.compute().items()}

    def notes(self) -> tuple[str, ...]:
        return tuple(note for metrics in self._by_prefix.values() for note in metrics.notes())

    def names(self) -> list[str]:
        return [name for metrics in self._by_prefix.values() for name in metrics.names()]

    def reset(self) -> None:
        for metrics in self._by_prefix.values():
            metrics.reset()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{prefix}{name}": tensor
            for prefix, metrics in self._by_prefix.items()
            for name, tensor in metrics.state().items()
        }

    def loss_parts(self) -> tuple[str, ...]:
        return self._by_prefix[""].loss_parts()

    def restore_loss_parts(self, names: Sequence[str], room: int = 0) -> None:
        self._by_prefix[""].restore_loss_parts(names, room)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        prefixes = tuple(prefix for prefix in self._by_prefix if prefix)
        for prefix, metrics in self._by_prefix.items():
            if prefix:
                names = [name for name in state if name.startswith(prefix)]
            else:
                names = [name for name in state if not name.startswith(prefixes)]
            metrics.merge({name.removeprefix(prefix): state[name] for name in names})
