"""A run directory as a record: what its files say, however far it has come. Read only."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS
from runner.errors import UserError
from runner.rundir.json_files import read_json
from runner.rundir.lock import is_locked

_TAIL = 1 << 16  # bytes of a file's end in which its last line is looked for
FINISHED = ("completed",)
# Overrides of these say nothing about how a run was made.
_IGNORED_OVERRIDES = ("hydra", "name", "run", "launcher", "search", "tracker", "experiments")
# Of the identity: the data's fingerprint and the batch of all ranks stand for these overrides.
_IMPLIED_OVERRIDES = tuple(f"trainer.{key}" for key in GLOBAL_BATCH_KEYS)


@dataclass(frozen=True)
class RunRecord:
    """One run.

    settings: what made it, by dotted key or group; choices: group -> option, also in settings;
    status: completed, interrupted, failed, pruned, running, or incomplete (killed: no result);
    metrics: `split/name`, numbers only, NaN and infinity among them.
    """

    folder: Path
    label: str
    status: str
    kind: str = "train"
    name: str = ""
    signature: str = ""
    seed: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str | None] = field(default_factory=dict)
    monitor: tuple[str, str] = ("validation/auc", "max")  # metric, direction
    step: int | None = None
    examples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_step: int | None = None
    seconds: float | None = None
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"


def read_run(
    folder: Path, label: str, leaderboard_row: Mapping[str, str] | None = None
) -> RunRecord:
    """A record of a folder with a `meta.json`.

    Args: leaderboard_row: what the leaderboard of its sweep says of it (status, error).
    Raises: UserError if `meta.json` cannot be read.
    """
    meta = read_json(folder / "meta.json")
    if not isinstance(meta, dict) or "signature" not in meta:
        raise UserError(f"{folder / 'meta.json'}: damaged: it holds no signature")
    identity = meta.get("identity") or {}
    result, damage = _result(folder)
    status, error = _status(folder, result, damage, leaderboard_row or {})
    metrics = numeric_values(result.get("metrics") or {})
    last = {} if result else last_row(folder / "metrics.jsonl")
    if not result and last.get("split"):
        metrics = {
            f"{last['split']}/{k}": v
            for k, v in numeric_values(last).items()
            if k not in ("step", "examples")
        }
    best = result.get("best") or {}
    seconds = as_number(result.get("active_s"))
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
        monitor=(
            str(identity.get("checkpoint.monitor.metric", "validation/auc")),
            str(identity.get("checkpoint.monitor.direction", "max")),
        ),
        step=result.get("step", last.get("step")),
        examples=result.get("examples", last.get("examples")),
        metrics=metrics,
        best_step=best.get("step"),
        seconds=seconds,
        error=error,
        meta=meta,
        result=result,
    )


def read_unstarted_run(
    folder: Path, label: str, leaderboard_row: Mapping[str, str] | None = None
) -> RunRecord:
    """A job of a sweep that ended before it had a `meta.json`."""
    running = is_locked(folder)
    said = leaderboard_row or {}
    error = said.get("error") or last_line(folder / "job.log") or "it ended before it had begun"
    status = "running" if running else said.get("status") or "failed"
    return RunRecord(folder, label, status, error=None if running else error)


def settings_from_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What made a run, by key: its identity, options of groups, and overrides of all else."""
    identity = dict(meta.get("identity") or {})
    choices = {k: v for k, v in (meta.get("choices") or {}).items() if v is not None}
    for name in ("experiments", "tracker", "launcher", "search", "loop"):
        choices.pop(name, None)
    found = {**identity, **choices}
    overrides = list(meta.get("overrides") or ())
    for resume in meta.get("resumes") or ():
        overrides += resume.get("overrides") or ()
    for text in overrides:
        key, equals, value = str(text).partition("=")
        key = key.lstrip("+")
        top = key.replace("/", ".").split(".")[0]
        if (
            equals
            and key not in found
            and top not in _IGNORED_OVERRIDES
            and key not in _IMPLIED_OVERRIDES
        ):
            found[key] = value
    return found


def _result(folder: Path) -> tuple[dict[str, Any], str | None]:
    """`result.json`, {} if there is none; and what is wrong with it."""
    path = folder / "result.json"
    if not path.exists():
        return {}, None
    try:
        result = read_json(path)
    except UserError as error:
        return {}, str(error)
    return (result, None) if isinstance(result, dict) else ({}, f"{path}: damaged: no mapping")


def _status(
    folder: Path, result: Mapping[str, Any], damage: str | None, beside: Mapping[str, str]
) -> tuple[str, str | None]:
    said = beside.get("error") or None
    if damage is not None:
        return "incomplete", damage
    if result:
        status = str(result.get("status"))
        told = str(result.get("error") or "").strip()
        if beside.get("status") in ("pruned", "failed") and status != "completed":
            status = str(beside["status"])
        line = told.splitlines()[-1] if told else said
        return status, None if status == "completed" else line
    if is_locked(folder):
        return "running", None
    trace = said or last_line(folder / "job.log") or last_line(folder / "log.txt")
    ended = beside.get("status")
    known = ended if ended in ("failed", "interrupted", "pruned") else "incomplete"
    return str(known), trace or "it was killed: there is no result"


def numeric_values(values: Mapping[str, Any]) -> dict[str, float]:
    return {k: number for k, v in values.items() if (number := as_number(v)) is not None}


def as_number(value: Any) -> float | None:
    """A number, or one that was written as text: NaN, Infinity. None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


def finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows of a `.jsonl` file; torn or damaged lines are left out."""
    rows = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.split("\n"):
        try:
            row = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def last_row(path: Path) -> dict[str, Any]:
    """The last whole row of a log, without reading all of it."""
    for line in reversed(_tail(path)):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return {}


def last_line(path: Path) -> str:
    """The last line of a text file that is not empty; "" if there is none."""
    lines = [line.strip() for line in _tail(path) if line.strip()]
    return lines[-1][:500] if lines else ""


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL))
            return file.read().decode(errors="replace").split("\n")
    except OSError:
        return []
