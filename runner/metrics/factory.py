"""The metrics of a pass, from their settings: the MetricSet, and what is asked for beside it."""

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
    """exact: for an evaluation; else cheap, for training. Raises: ConfigError."""
    whole = _of_rows(schema, device, settings, exact)
    if not exact or settings.slice_by is None:
        return whole
    slices = SlicedMetrics(lambda: _of_rows(schema, device, settings, exact), settings.slice_by)
    return MetricCollection(whole, {"slices": slices})


def _of_rows(
    schema: Schema, device: torch.device, settings: MetricSettings, exact: bool
) -> Metrics:
    find_group_column(settings, schema.groups)
    own = replace(
        settings,
        eval=[name for name in settings.eval if name in METRICS],
        train=[name for name in settings.train if name in METRICS],
    )
    first = MetricSet(schema.tasks, exact=exact, device=device, settings=own, groups=schema.groups)
    others: dict[str, Metrics] = {}
    if "ece" in (settings.eval if exact else settings.train):
        bins = settings.ece_bins
        others["ece"] = CalibrationError(schema.tasks, num_bins=bins, device=device)
    if exact and settings.ranking_metrics:
        others["users"] = PerUserMetrics(
            settings.ranking_metrics,
            schema.tasks,
            group=_users(settings, schema),
            full=settings.candidates == "full",
            row_limit=settings.exact_auroc_rows,
            device=device,
        )
    return MetricCollection(first, others) if others else first


def _users(settings: MetricSettings, schema: Schema) -> int | None:
    """Place of the users' column; None: each row of label 1 is ranked by itself."""
    if settings.group is not None:
        return list(schema.groups).index(settings.group)
    return 0 if schema.groups else None
