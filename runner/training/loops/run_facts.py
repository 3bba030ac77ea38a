"""What a run keeps for its report beside metrics: facts of its data, and its calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.metrics.protocol import Metrics
from runner.metrics.reliability import compute_reliability
from runner.rundir.json_files import dumps
from runner.training.job import Job

DATA_FACTS_FILE = "data.json"
CALIBRATION_FILE = "calibration.json"


def write_data_facts(job: Job) -> None:
    """Rows, features and tasks of the dataset, and what is reachable on it."""
    dataset = job.dataset
    schema = dataset.schema
    _write(
        job,
        DATA_FACTS_FILE,
        {
            "num_rows": dict(dataset.num_rows),
            "dense": list(schema.dense),
            "sparse": [
                {
                    "name": f.name,
                    "table": f.table_name,
                    "num_rows": f.num_rows,
                    "length": f.mean_length,
                }
                for f in schema.sparse
            ],
            "sequences": [
                {
                    "name": f.name,
                    "table": f.table_name,
                    "num_rows": f.num_rows,
                    "length": f.max_length,
                }
                for f in schema.sequences
            ],
            "tasks": [{"name": t.name, "kind": t.kind} for t in schema.tasks],
            "reachable": dataset.reachable,
            "bad_rows": dataset.bad_rows,
        },
    )


def write_calibration(job: Job, split: str, step: int, metrics: Metrics | None) -> None:
    """The calibration of a split as this pass has it, beside those of other splits.

    Args: metrics: after the pass, holding the rows of all ranks (loops/measured.py).
    """
    if metrics is None or job.run is None or not job.context.ranks.is_main:
        return
    tasks = compute_reliability(metrics.state(), job.dataset.schema.tasks)
    if tasks:
        before = _read(job.run.dir / CALIBRATION_FILE)
        _write(job, CALIBRATION_FILE, {**before, split: {"step": step, "tasks": tasks}})


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or torn by a power cut: this pass begins it anew
        return {}
    return found if isinstance(found, dict) else {}


def _write(job: Job, name: str, value: Mapping[str, Any]) -> None:
    """Replaces a file whole. Not synced: it is for looking at, and made again by a resume."""
    if job.run is None or not job.context.ranks.is_main:
        return
    path = job.run.dir / name
    temporary = path.with_name(f".{name}.tmp")
    try:
        temporary.write_text(dumps(value), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:  # a full disk stops the run where it matters, at a row or a checkpoint
        temporary.unlink(missing_ok=True)
        job.view.warn(f"{path} could not be written: {error.strerror or error}")
