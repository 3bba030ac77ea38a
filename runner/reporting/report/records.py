"""Reads a run directory into a record, whatever state the run is in. Read only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS
from runner.errors import UserError, shell_path
from runner.rundir.checkpoint.folder import step_folders
from runner.rundir.json_files import iterate_jsonl
from runner.rundir.lock import is_locked
from runner.rundir.readers import (
    as_number,
    last_line,
    numeric_values,
    read_signed_meta,
    read_tail,
    text_lines,
)
from runner.rundir.run_files import read_result

_BLANKS = re.compile(r"(?<=[,:{\[])\s+|\s+(?=[}\]])")  # between the parts of a mapping or a list
# Overrides of these keys do not affect how a run was made.
_IGNORED_OVERRIDES = ("hydra", "name", "run", "launcher", "search", "tracker", "experiments")
# The global batch size, which is part of the identity, replaces these overrides.
_IMPLIED_OVERRIDES = tuple(f"trainer.{key}" for key in GLOBAL_BATCH_KEYS)


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    folder: Path
    label: str
    # as in `result.json` (completed, interrupted, failed, pruned), or running, incomplete (killed,
    # so that there is no result) or waiting (not started yet)
    status: str
    kind: str = "train"
    name: str = ""
    signature: str = ""
    seed: Any = None
    # settings that made the run, by dotted key or group
    settings: Mapping[str, Any] = field(default_factory=dict)
    # the chosen option of each group, which are among the settings too
    choices: Mapping[str, str | None] = field(default_factory=dict)
    # the metric by which the run chose its best step, and its direction
    monitor: tuple[str, str] = ("validation/auc", "max")
    step: int | None = None
    examples: int | None = None
    # numbers by `split/name`, NaN and infinity among them; what the result lacks is from the log
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_step: int | None = None
    seconds: float | None = None  # of work
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    # whether no other job of its search is better in every objective
    is_pareto_optimal: bool = False

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"


def read_run(
    folder: Path, label: str, leaderboard_row: Mapping[str, str] | None = None
) -> RunRecord:
    """Return the record of a folder with a `meta.json`.

    Args:
        leaderboard_row: its row in the leaderboard of its sweep (status, error).

    Raises:
        UserError: if `meta.json` cannot be read.
    """
    meta = read_signed_meta(folder)
    identity = meta.get("identity") or {}
    result, damage = _read_result(folder)
    status, error = _status(folder, result, damage, leaderboard_row or {})
    monitor = (
        str(identity.get("checkpoint.monitor.metric", "validation/auc")),
        str(identity.get("checkpoint.monitor.direction", "max")),
    )
    metrics = numeric_values(result.get("metrics") or {})
    # a whole log is read only if the result lacks metrics
    is_partial = status != "completed" and monitor[0] not in metrics
    logged = read_logged_metrics(folder, monitor) if is_partial else LoggedMetrics()
    best = result.get("best") or {}
    return RunRecord(
        folder=folder,
        label=label,
        status=status,
        kind=str(meta.get("kind") or "train"),
        name=str(meta.get("name") or ""),
        signature=str(meta["signature"]),
        seed=meta.get("seed"),
        settings=settings_from_meta(meta),
        choices={k: v for k, v in (meta.get("choices") or {}).items() if v is not None},
        monitor=monitor,
        step=result.get("step", logged.step),
        examples=result.get("examples", logged.examples),
        metrics={**logged.metrics, **metrics},
        best_step=best.get("step", logged.best_step),
        seconds=as_number(result.get("active_s")),
        error=error,
        meta=meta,
        result=result,
    )


def read_unstarted_run(
    folder: Path, label: str, leaderboard_row: Mapping[str, str] | None = None
) -> RunRecord:
    """Return the record of a sweep's job that ended before it had a `meta.json`.

    Args:
        leaderboard_row: its row in the leaderboard of its sweep (status, error).
    """
    if is_locked(folder):
        return RunRecord(folder, label, "running")
    row = leaderboard_row or {}
    if row.get("step"):  # it had a result, which a job that had not begun cannot have
        again = f"`python -m runner resume {shell_path(folder.parent)}` runs it again"
        return RunRecord(folder, label, "incomplete", error=f"its files are gone; {again}")
    line = (last_line(folder / "job.log") or "it ended before it had begun")[:MAX_ERROR_LENGTH]
    return RunRecord(folder, label, row.get("status") or "failed", error=row.get("error") or line)


def settings_from_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that made a run: its identity, options of groups, further overrides."""
    identity = dict(meta.get("identity") or {})
    choices = {k: v for k, v in (meta.get("choices") or {}).items() if v is not None}
    for name in ("experiments", "tracker", "launcher", "search", "loop"):
        choices.pop(name, None)
    settings = {**identity, **choices}
    overrides = list(meta.get("overrides") or ())
    for resume in meta.get("resumes") or ():
        overrides += resume.get("overrides") or ()
    for text in overrides:
        key, equals, value = str(text).partition("=")
        key = key.lstrip("+")
        top = key.replace("/", ".").split(".")[0]
        ignored = top in _IGNORED_OVERRIDES or key in _IMPLIED_OVERRIDES
        if equals and key not in settings and not ignored:
            # a sweep writes `{train:64,test:8}` what a person writes `{train: 64, test: 8}`
            settings[key] = _BLANKS.sub("", value) if value[:1] in ("{", "[") else value
    return settings


def format_setting(value: Any) -> str:
    """Return a setting as a person writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints that have a manifest. Their files are not checked."""
    folders = step_folders(folder / "checkpoints")
    return [step for step, path in folders.items() if (path / "manifest.json").exists()]


def _read_result(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return `result.json`, {} if there is none, and an error if it is damaged."""
    try:
        return read_result(folder) or {}, None
    except UserError as error:
        return {}, str(error)


def _status(
    folder: Path, result: Mapping[str, Any], damage: str | None, leaderboard_row: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the status, and the last line of the error.

    The leaderboard decides if the run itself could not record how it ended.
    """
    ended, reason = leaderboard_row.get("status"), leaderboard_row.get("error") or None
    if damage is not None:
        return "incomplete", damage
    if result:
        status = str(result.get("status"))
        if status != "completed" and ended in ("pruned", "failed"):
            status = ended
        error = str(result.get("error") or "").strip()
        line = error.splitlines()[-1] if error else reason
        return status, None if status == "completed" else line
    if is_locked(folder):
        return "running", None
    line = reason or last_error(folder / "job.log") or last_error(folder / "log.txt")
    status = ended if ended in ("failed", "interrupted", "pruned") else "incomplete"
    go_on = f"`python -m runner resume {shell_path(folder)}` goes on"
    return status, line or f"it was killed: there is no result; {go_on}"


MAX_ERROR_LENGTH = 500
_NO_METRICS = ("step", "examples", "update_rows", "total_steps")  # and rates: no result has them
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) [^ ]+: (.*)")
_ERROR_LEVELS = ("ERROR", "CRITICAL")


@dataclass(frozen=True)
class LoggedMetrics:
    """The metrics of a run that has no result, by `split/name`.

    The monitored split has the metrics of its best row, as in a result, other splits of their last.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None  # of the last row
    examples: int | None = None
    best_step: int | None = None


def read_logged_metrics(folder: Path, monitor: tuple[str, str]) -> LoggedMetrics:
    """Read the whole `metrics.jsonl` of a run.

    Args:
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

    An entry is a line of a run's `log.txt` with all lines up to the next entry. For a traceback the
    line with the exception is returned. A job's output also has lines that begin with `error: `.
    """
    last, in_traceback = None, False
    for line in text_lines(read_tail(path)):
        if entry := _LOGGED.match(line):
            last = entry[2] if entry[1] in _ERROR_LEVELS else None
            in_traceback = False
        elif line.startswith("error: "):
            last = line.removeprefix("error: ")
        elif line.startswith("Traceback (most recent call last)"):
            in_traceback = True
        elif in_traceback and not line.startswith(" "):
            last, in_traceback = line, False
    return last and last[:MAX_ERROR_LENGTH]
