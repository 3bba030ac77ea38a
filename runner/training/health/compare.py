"""Puts the yardstick and the findings into the result of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.data.core.cache import get_or_prepare, read_contents
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import hash_json
from runner.metrics.names import split_task
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.rundir.json_files import iterate_jsonl
from runner.rundir.readers import numeric_values
from runner.training.health.drift import describe_features
from runner.training.health.popularity import measure_popularity, popularity_key
from runner.training.health.verdict import (
    MEASURED,
    MEASURED_OF_NUMBERS,
    explain_below,
    find_overfitting,
    find_useless,
    name_regression,
    select_shown,
)
from runner.training.job import Job, Result
from runner.training.state import TrainState

_OFF = "trainer.yardstick=false measures neither"
VERSION = 12  # of the cached results; those of another version are measured again


def compare_with_yardstick(job: Job, state: TrainState, result: Result) -> None:
    """Add `yardstick` and `findings` to the notes of a result. Nothing else changes.

    It runs on rank 0, and other ranks wait only at the end of the run. If it fails, there is a
    warning, and the run keeps its result.
    """
    if not job.trainer.yardstick or job.run is None or not job.context.ranks.is_main:
        return
    splits = [s for s in ("validation", "test") if s in job.dataset.num_rows]
    names = _ranking_metrics(job)[:1] or (*MEASURED, *MEASURED_OF_NUMBERS)
    splits = [s for s in splits if any(f"{s}/{name}" in result.metrics for name in names)]
    if not splits or "train" not in job.dataset.num_rows:
        return
    started = time.perf_counter()
    try:
        measured = _get_or_measure(job, splits)
    except Exception as error:
        job.view.warn(
            f"the baseline for comparison was not measured: {type(error).__name__}: {error}; {_OFF}"
        )
        return
    if not measured:
        return
    if not _ranking_metrics(job):
        measured["metrics"] = select_shown(measured["metrics"], result.metrics)
    last_validation: dict[str, Any] = {}
    for row in iterate_jsonl(job.run.metrics.path):
        if row.get("split") == "validation" and "loss" in row:  # other rows are of callbacks
            last_validation = row
    overfitting = find_overfitting(job, state, numeric_values(last_validation))
    findings = [*measured.pop("findings"), *overfitting, *find_useless(result.metrics)]
    job.run.perf.append({"step": result.step, "yardstick_s": time.perf_counter() - started})
    result.notes["yardstick"] = measured
    result.notes["findings"] = findings
    if below := explain_below(job, state, result.metrics, measured, findings):
        measured["below"] = below


def measure_features(job: Job) -> list[dict[str, Any]]:
    """Return coverage and drift of the features for `data.json`; nothing on ranks other than 0.

    Nothing else changes, and a failure is a warning, as in `compare_with_yardstick`.

    Args:
        job: whose `trainer.yardstick` turns it off.
    """
    if not job.trainer.yardstick or job.run is None or not job.context.ranks.is_main:
        return []
    fields = {"version": 1}
    try:
        measured = _cached(job, "drift", fields, lambda: {"features": describe_features(job)})
    except Exception as error:
        job.view.warn(f"drift of features is not measured: {type(error).__name__}: {error}; {_OFF}")
        return []
    features: list[dict[str, Any]] = measured["features"]
    return features


def _get_or_measure(job: Job, splits: Sequence[str]) -> dict[str, Any]:
    """Return the yardstick of these data, from the cache if another run has measured it.

    For a user's dataset it is measured each time, since its fingerprint may not cover its content.

    Raises:
        DataError: if the cache cannot be written.
    """
    measure, what, more = _measure_regression, name_regression(job.dataset.schema.tasks), {}
    if _ranking_metrics(job):
        measure, what, more = measure_popularity, "popularity", {"popularity": popularity_key(job)}
    fields = {"version": VERSION, "splits": list(splits), **more}

    def measure_and_say() -> dict[str, Any]:
        job.view.wait_for(f"{what} on the same rows, for comparison")
        return measure(job, splits)

    return _cached(job, "yardstick", fields, measure_and_say)


def _measure_regression(job: Job, splits: Sequence[str]) -> dict[str, Any]:
    # SciPy takes a quarter of a second, and most runs find the result in the cache.
    from runner.training.health.yardstick import measure_yardstick

    return measure_yardstick(job, splits)


def _cached(
    job: Job, kind: str, fields: Mapping[str, Any], measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return a measurement of the data, from the cache if the dataset has a reliable fingerprint.

    Raises:
        DataError: if the cache cannot be written.
    """
    assert job.run is not None
    data = (job.run.meta.get("identity") or {}).get("data")
    if data is None or build_recipe(job.config["dataset"]) is None:
        return measure()
    key = hash_json({**fields, "data": data})
    return read_contents(get_or_prepare(kind, key, lambda _: measure()))


def _ranking_metrics(job: Job) -> tuple[str, ...]:
    """Return the metrics, without tasks, of a model that ranks items; empty for other models."""
    if not isinstance(job.context.model, RetrievalModel) or "train" not in job.dataset.num_rows:
        return ()
    return tuple(split_task(name)[0] for name in job.metric_settings.ranking_metrics)
