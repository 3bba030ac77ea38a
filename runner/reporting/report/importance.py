"""Computes the share of a metric's variance that each parameter explains.

It is a share of variance (one-way analysis of variance, Fisher 1925; epsilon squared, Kelley 1935):

    share = max(0, (B - (k - 1) W / (n - k)) / T)

with T the sum of squares of the metric over all n runs, B that of the means of the k values, and
W = T - B. The correction subtracts the part that k means explain by chance. The share covers only
the main effect; the rest belongs to interactions of parameters, seeds and chance. On a grid it is
the first-order share of fANOVA. It is computed here since libraries need a study or a forest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.reporting.report.leaderboard import SeedGroup, format_run_settings, newest_repetitions
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import finite_or_none, parse_number

_MAX_VALUES = 8  # values of a numeric parameter; more are binned into so many equal parts
_MIN_RUNS = 4


@dataclass(frozen=True)
class ParameterImportance:
    """A parameter and the share of the metric's variance that it explains."""

    key: str
    variance_share: float  # 0 to 1
    others: tuple[str, ...] = ()  # parameters that always change together with it


def rank_parameters(
    runs: Sequence[RunRecord], keys: Sequence[str], metric: str
) -> list[ParameterImportance]:
    """Return the share of each parameter among completed runs, the largest first.

    Parameters for which it cannot be computed are left out, and so are those without influence on
    results, such as `checkpoint.save_every`; those that always change together share one entry,
    since no run distinguishes them.
    """
    makes_result = {k for run in runs for k in (*(run.meta.get("identity") or {}), *run.choices)}
    measured = [
        (run, value)
        for run in runs
        if run.is_completed and (value := finite_or_none(run.metrics.get(metric))) is not None
    ]
    together: dict[tuple[int, ...], list[str]] = {}  # the runs of each value -> parameters
    for key in filter(makes_result.__contains__, keys):
        parts = binned_values([run for run, _ in measured], key)
        together.setdefault(tuple(map(parts.index, parts)), []).append(key)
    importances = []
    for partition, (key, *others) in together.items():
        share = explained_variance(partition, [value for _, value in measured])
        if share is not None:
            importances.append(ParameterImportance(key, share, tuple(others)))
    return sorted(importances, key=lambda s: -s.variance_share)


def runs_of_same_data(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the completed runs of the data that most of them have, each signature once.

    A metric depends on its rows as much as on the model, so that the variance between runs of
    different data is that of the data. An exact repetition of a run has the same result, which
    would count as a setting without spread; of those by other code the newest counts.
    """
    members: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.is_completed:
            members.setdefault(str(run.settings.get("data")), []).append(run)
    return max(map(newest_repetitions, members.values()), key=len, default=[])


def explained_variance(parts: Sequence[Any], values: Sequence[float]) -> float | None:
    """Return the share of the variance that is between parts; None for too few values."""
    groups: dict[Any, list[float]] = {}
    for part, value in zip(parts, values):
        groups.setdefault(part, []).append(value)
    n, k = len(values), len(groups)
    if n < _MIN_RUNS or k < 2 or n <= k:
        return None
    mean = statistics.fmean(values)
    total = math.fsum((v - mean) ** 2 for v in values)
    if total == 0:
        return None
    between = math.fsum(len(g) * (statistics.fmean(g) - mean) ** 2 for g in groups.values())
    within = max(0.0, total - between) / (n - k)
    return min(1.0, max(0.0, (between - (k - 1) * within) / total))


def seed_variance_share(settings: Sequence[SeedGroup], metric: str) -> float | None:
    """Return the share of the variance that remains between runs of the same settings."""
    groups = [g for setting in settings if (g := setting.metric_values(metric))]
    values = [v for g in groups for v in g]
    free = len(values) - len(groups)
    if free < 1 or len(values) < _MIN_RUNS:
        return None
    total = statistics.variance(values)
    if total == 0:
        return None
    within = math.fsum((v - statistics.fmean(g)) ** 2 for g in groups for v in g) / free
    return min(1.0, within / total)


def binned_values(runs: Sequence[RunRecord], key: str) -> list[Any]:
    """Return a parameter's value for each run; many different numbers are binned equally."""
    raw = [run.settings.get(key) for run in runs]
    floats = [parse_number(v) for v in raw]
    numbers = sorted(v for v in floats if v is not None)
    if len(numbers) < len(raw) or len(set(numbers)) <= _MAX_VALUES:
        return [format_run_settings(run, [key])[0] for run in runs]
    count = max(2, min(_MAX_VALUES, len(numbers) // 3))
    edges = [numbers[len(numbers) * i // count] for i in range(1, count)]
    return [sum(v >= edge for edge in edges) for v in floats if v is not None]
