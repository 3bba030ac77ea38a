"""What the logs of a run say where its result does not: metrics so far, and a last error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.rundir.json_files import iterate_jsonl
from runner.rundir.readers import as_number, numeric_values, read_tail, text_lines

MAX_ERROR_LENGTH = 500
_NO_METRICS = ("step", "examples", "update_rows", "total_steps")  # and rates: no result has them
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) [^ ]+: (.*)")
_ERROR_LEVELS = ("ERROR", "CRITICAL")


@dataclass(frozen=True)
class LoggedMetrics:
    """The metrics of a run that has no result, by `split/name`.

    The monitored split has the metrics of its best row, as a result has, and others of their last.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None  # of the last row
    examples: int | None = None
    best_step: int | None = None


def read_logged_metrics(folder: Path, monitor: tuple[str, str]) -> LoggedMetrics:
    """Read the whole `metrics.jsonl` of a run.

    Args:
        folder: the run directory.
        monitor: the metric by which the run chooses its best step, and its direction.
    """
    split, _, name = monitor[0].partition("/")
    sign = 1.0 if monitor[1] == "max" else -1.0
    last: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    best, best_value = None, 0.0
    for last in iterate_jsonl(folder / "metrics.jsonl"):
        if last.get("split") and "loss" in last:  # other rows are of callbacks, and in no result
            rows[str(last["split"])] = last
        value = as_number(last.get(name)) if last.get("split") == split else None
        if value is None or math.isnan(value):
            continue
        if best is None or sign * value > best_value:
            best, best_value = last, sign * value
    if best is not None:
        rows[split] = best
    return LoggedMetrics(
        {
            f"{of}/{key}": value
            for of, row in rows.items()
            for key, value in numeric_values(row).items()
            if key not in _NO_METRICS and not key.startswith("lr/")
        },
        last.get("step"),
        last.get("examples"),
        None if best is None else best.get("step"),
    )


def last_error(path: Path) -> str | None:
    """Return the error with which a log ends; None if its last entry is no error.

    An entry is a line of a run's `log.txt` with all up to the next one. Of a traceback the line
    with the exception is returned. A job's output has such lines as well, and `error: `.
    """
    found, in_traceback = None, False
    for line in text_lines(read_tail(path)):
        if entry := _LOGGED.match(line):
            found = entry[2] if entry[1] in _ERROR_LEVELS else None
            in_traceback = False
        elif line.startswith("error: "):
            found = line.removeprefix("error: ")
        elif line.startswith("Traceback (most recent call last)"):
            in_traceback = True
        elif in_traceback and not line.startswith(" "):
            found, in_traceback = line, False
    return found and found[:MAX_ERROR_LENGTH]
