"""Warm start: weights of other runs, in part, under other names, by the values behind the rows.

Where both runs have a vocabulary for a table, a row is taken for the value it stands for, whatever
its number was there; where neither has one, row for row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from runner.config.settings import CheckpointSettings
from runner.errors import ConfigError, nearest_hint
from runner.training.job import Job
from runner.training.state import EMA_PREFIX, weight_tensors
from runner.training.warm_start.optimizer_states import MatchedWeights, copy_optimizer_states
from runner.training.warm_start.source import (
    DENSE_PREFIX,
    TABLES_PREFIX,
    RowMap,
    WarmStartSource,
    copy_matched_tensors,
    is_table_weight,
)


def wants_warm_start(settings: CheckpointSettings) -> bool:
    return bool(settings.init_from or settings.init_tables)


def warm_start(job: Job) -> str:
    """Copies what `checkpoint.init_*` asks for; the step stays at the start. Returns the report.

    Raises: ConfigError for a name that is not there, and if nothing matches.
    """
    settings = job.checkpoint
    lines: list[str] = []
    takes: list[MatchedWeights] = []
    if settings.init_from:
        took, more = _from_run(job, Path(settings.init_from))
        lines, takes = lines + more, [*takes, took]
    for table, given in (settings.init_tables or {}).items():
        took, more = _table_from(job, table, Path(given["from"]), given.get("table") or table)
        lines, takes = lines + more, [*takes, took]
    if settings.init_optimizer:
        lines += copy_optimizer_states(job, takes)
    return "\n".join(lines)


def map_weight_names(
    names: Iterable[str], asked: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Our names -> theirs; None: not to be taken. A key is a name or the beginning of some, the
    longest that fits counts. Raises: ConfigError for a key that no name begins with."""
    names = list(names)
    for key in asked:
        if not any(_begins(name, key) for name in names):
            raise ConfigError(
                f"checkpoint.init_names.{key}: no weight{nearest_hint(key, names, 3)}"
            )
    found: dict[str, str | None] = {}
    for name in names:
        key = max((k for k in asked if _begins(name, k)), key=len, default="")
        other = asked.get(key, "")
        found[name] = None if other is None else other + name[len(key) :]
    return found


def _begins(name: str, key: str) -> bool:
    return name.startswith(key) and (key[-1:] in "./" or name[len(key) :][:1] in ("", ".", "/"))


def _from_run(job: Job, path: Path) -> tuple[MatchedWeights, list[str]]:
    source, ours = WarmStartSource.open(job, path), weight_tensors(job.context)
    asked = job.checkpoint.init_names or {}
    names = map_weight_names(ours, asked)
    for key, other in asked.items():
        if other is not None and not any(_begins(name, other) for name in source.shapes):
            raise ConfigError(
                f"checkpoint.init_names.{key}={other}: {path} has no such weight"
                f"{nearest_hint(other, source.shapes, 3)}"
            )
    taken: dict[str, str] = {}
    by_rows: dict[str, RowMap] = {}
    lines = []
    for name, other in names.items():
        if other is None:
            lines.append(f"  left as it is: {name}")
            continue
        problem, rows = _fit(source, name, other, ours[name])
        if problem:
            lines.append(f"  {problem}")
            continue
        taken[name] = other
        if rows is not None:
            by_rows[name] = rows
            lines.append(_told(name, rows, len(ours[name])))
    if not any(ours[name].dim() > 1 for name in taken):  # a bias of one number matches by chance
        raise ConfigError(
            f"checkpoint.init_from={path}: no table and no matrix of it matches by name and "
            f"shape; here, for example, {_example(ours)}, there {_example(source.shapes)}"
        )
    averaged, more = _averages(job, source, taken)
    copied = {n: (ours[n], averaged.get(n, other)) for n, other in taken.items()}
    copy_matched_tensors(source, copied, by_rows)
    unused = set(source.shapes) - set(taken.values())
    unused = {n for n in unused if n.startswith(DENSE_PREFIX) or is_table_weight(n)}
    head = f"warm start from {source.saved.path}: {len(taken)} of {len(ours)} weights taken"
    lines = [head, *lines, *(f"  there, not used: {n}" for n in sorted(unused)), *more]
    return MatchedWeights(source, taken, by_rows), lines


def _averages(
    job: Job, source: WarmStartSource, taken: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Our names -> their moving averages, where those are asked for; and what is said of them."""
    there = [name for name in source.shapes if name.startswith(EMA_PREFIX)]
    if not job.checkpoint.init_average:
        if not there:
            return {}, []
        return {}, [
            f"  there, not used: moving averages of {len(there)} dense weights, which its "
            "evaluations took unless its trainer.ema.evaluate was false; "
            "checkpoint.init_average=true starts from them"
        ]
    if not there:
        raise ConfigError(
            f"checkpoint.init_average=true: {source.saved.path} holds no moving average: its run "
            "kept none; false takes its weights"
        )
    found = {
        name: f"{EMA_PREFIX}{other.removeprefix(DENSE_PREFIX)}" for name, other in taken.items()
    }
    found = {name: other for name, other in found.items() if other in source.shapes}
    dense = sum(other.startswith(DENSE_PREFIX) for other in taken.values())
    return found, [f"  moving averages taken for {len(found)} of {dense} dense weights"]


def _fit(
    source: WarmStartSource, name: str, other: str, tensor: Tensor
) -> tuple[str, RowMap | None]:
    """Why a weight cannot be taken, or nothing; and its rows, if not all are their own."""
    if other not in source.shapes:
        looked_for = f" ({other})" if other != name else ""
        return f"not there, initialised afresh: {name}{looked_for}", None
    shape, theirs, rows = tuple(tensor.shape), source.shapes[other], None
    if is_table_weight(name) and is_table_weight(other) and shape[1:] == theirs[1:]:
        try:
            rows = source.map_rows(name, other, shape[0], theirs[0])
        except ConfigError as error:
            return f"not taken: {error}", None
    if shape != theirs and rows is None:
        return f"shape differs: {name} ({theirs} there, {shape} here)", None
    return "", rows


def _table_from(job: Job, table: str, path: Path, other: str) -> tuple[MatchedWeights, list[str]]:
    """One table of this run from one of another, which may be wider spread or have fewer rows."""
    key = f"checkpoint.init_tables.{table}"
    source, ours = WarmStartSource.open(job, path), weight_tensors(job.context)
    name, theirs = f"{TABLES_PREFIX}{table}/weight", f"{TABLES_PREFIX}{other}/weight"
    for wanted, known, where in ((name, ours, key), (theirs, source.shapes, f"{key}.table")):
        if wanted not in known:
            tables = [n.split("/")[1] for n in known if is_table_weight(n)]
            asked = wanted.split("/")[1]
            raise ConfigError(f"{where}: no table {asked!r}{nearest_hint(asked, tables)}")
    shape, found = tuple(ours[name].shape), source.shapes[theirs]
    if shape[1:] != found[1:]:
        raise ConfigError(f"{key}: is {shape[1]} wide, {other!r} of {path} {found[1]}")
    try:
        rows = source.map_rows(name, theirs, shape[0], found[0])
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    both = np.arange(min(shape[0], found[0]))
    rows = rows or RowMap(both, both)
    taken, by_rows = {name: theirs}, {name: rows}
    copy_matched_tensors(source, {name: (ours[name], theirs)}, by_rows)
    head = f"warm start of {name} from {theirs} of {source.saved.path}"
    return MatchedWeights(source, taken, by_rows), [head, _told(name, rows, shape[0])]


def _told(name: str, rows: RowMap, num_rows: int) -> str:
    return f"  {name}: {len(rows.ours):,} of {num_rows:,} rows found there, the others afresh"


def _example(shapes: Mapping[str, Any]) -> str:
    name = min(shapes)
    return f"{name} {tuple(getattr(shapes[name], 'shape', shapes[name]))}"
