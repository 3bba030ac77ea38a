"""Writes the facts that a report shows in addition to metrics: about the data, and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.batch import SequenceFeature, SparseFeature
from runner.metrics.hardest import HardestRows
from runner.metrics.protocol import Metrics
from runner.metrics.reliability import compute_reliability
from runner.rundir.json_files import dumps
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import replacing
from runner.rundir.secrets import mask_values
from runner.training.job import Job

DATA_FACTS_FILE = "data.json"
CALIBRATION_FILE = "calibration.json"
HARDEST_FILE = "hardest.json"
WARM_START_FILE = "warm_start.json"


def write_data_facts(job: Job, features: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write the rows, features and tasks of the dataset, and the best reachable metrics.

    Args:
        features: coverage and drift of each, once they are measured.
    """
    dataset = job.dataset
    schema = dataset.schema
    _write(
        job,
        DATA_FACTS_FILE,
        {
            "num_rows": dict(dataset.num_rows),
            "dense": list(schema.dense),
            "sparse": [_describe(f, f.mean_length) for f in schema.sparse],
            "sequences": [_describe(f, f.max_length) for f in schema.sequences],
            "tasks": [{"name": t.name, "kind": t.kind} for t in schema.tasks],
            "reachable": dataset.reachable,
            "bad_rows": dataset.bad_rows,
            **({"features": list(features)} if features else {}),
        },
    )


def _describe(feature: SparseFeature | SequenceFeature, length: float) -> dict[str, Any]:
    table, num_rows = feature.table_name, feature.num_rows
    return {"name": feature.name, "table": table, "num_rows": num_rows, "length": length}


def write_warm_start(job: Job, report: str) -> None:
    """Write the report of a warm start, one line per item."""
    _write(job, WARM_START_FILE, {"lines": report.splitlines()})


def write_calibration(job: Job, split: str, step: int, metrics: Metrics | None) -> None:
    """Write the calibration of a split into the file with those of other splits.

    Args:
        metrics: of a whole evaluation, with the rows of all ranks (`recorder.reduce_metrics`).
    """
    if metrics is None or job.run is None or not job.context.ranks.is_main:
        return
    tasks = compute_reliability(metrics.state(), job.dataset.schema.tasks)
    if tasks:
        splits = read_optional_json(job.run.dir / CALIBRATION_FILE)
        _write(job, CALIBRATION_FILE, {**splits, split: {"step": step, "tasks": tasks}})


def hardest_rows(job: Job) -> HardestRows | None:
    """Return the collector of the rows with the largest loss, if they are asked for."""
    limit = job.metric_settings.hardest_rows
    return HardestRows(limit) if limit and job.run is not None else None


def write_hardest(job: Job, split: str, step: int, hardest: HardestRows | None) -> None:
    """Write the rows of a split with the largest loss, of all ranks. Collective."""
    if hardest is None or job.run is None:
        return
    rows_of_ranks = job.context.ranks.all_gather_object(hardest.rows(job.dataset.schema.tasks))
    rows = sorted((row for rows in rows_of_ranks for row in rows), key=lambda row: -row["loss"])
    limit = job.metric_settings.hardest_rows
    splits = read_optional_json(job.run.dir / HARDEST_FILE)
    _write(job, HARDEST_FILE, {**splits, split: {"step": step, "rows": rows[:limit]}})


def _write(job: Job, name: str, value: Mapping[str, Any]) -> None:
    """Replace a file atomically. It is not synced, since a resumed run writes it again."""
    if job.run is None or not job.context.ranks.is_main:
        return
    path = job.run.dir / name
    try:
        with replacing(path) as file:
            file.write(dumps(mask_values(value, everything=False)))
    except OSError as error:  # a full disk fails the run at the next row or checkpoint
        job.view.warn(f"{path}: could not be written: {error.strerror or error}; the run goes on")
