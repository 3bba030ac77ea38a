"""Makes the metrics of a pass from their settings."""

from __future__ import annotations

from dataclasses import replace

import torch

from runner.batch import Schema
from runner.metrics.calibration import CalibrationError
from runner.metrics.collection import MetricCollection
from runner.metrics.metric_set import MetricSet
from runner.metrics.protocol import Metrics
from runner.metrics.ranking import PerUserMetrics
from runner.metrics.settings import METRICS, MetricSettings, find_group_column
from runner.metrics.slices import SlicedMetrics


def make_metrics(
    schema: Schema, device: torch.device, settings: MetricSettings, exact: bool
) -> Metrics:
    """Make the metrics of a pass over a split.

    Args:
        exact: True for an evaluation, False for the cheap metrics of training.

    Raises:
        ConfigError: if metrics need a group column that the dataset has not.
    """
    metrics = _make_unsliced(schema, device, settings, exact)
    if not exact or settings.slice_by is None:
        return metrics
    slices = SlicedMetrics(
        lambda: _make_unsliced(schema, device, settings, exact), settings.slice_by
    )
    return MetricCollection(metrics, {"slices": slices})


def _make_unsliced(
    schema: Schema, device: torch.device, settings: MetricSettings, exact: bool
) -> Metrics:
    find_group_column(settings, schema.groups)
    set_settings = replace(
        settings,
        eval=[name for name in settings.eval if name in METRICS],
        train=[name for name in settings.train if name in METRICS],
    )
    first = MetricSet(
        schema.tasks, exact=exact, device=device, settings=set_settings, groups=schema.groups
    )
    others: dict[str, Metrics] = {}
    if "ece" in (settings.eval if exact else settings.train):
        bins = settings.ece_bins
        others["ece"] = CalibrationError(schema.tasks, num_bins=bins, device=device)
    if exact and settings.ranking_metrics:
        others["users"] = PerUserMetrics(
            settings.ranking_metrics,
            schema.tasks,
            group=_find_user_column(settings, schema),
            full=settings.candidates == "full",
            row_limit=settings.exact_auroc_rows,
            device=device,
        )
    return MetricCollection(first, others) if others else first


def _find_user_column(settings: MetricSettings, schema: Schema) -> int | None:
    """Return the index of the users' column; None: each row of label 1 is ranked by itself."""
    if settings.group is not None:
        return list(schema.groups).index(settings.group)
    return 0 if schema.groups else None
