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

from runner.config import CheckpointSettings
from runner.errors import ConfigError, nearest
from runner.job import Job
from runner.loops.warm_source import TABLES, RowMap, Source, copy_taken, is_table
from runner.optim.dense import create_states, dense_state, probe_states
from runner.state import parameters_of, weights

# Moments of tables: their bias correction counts from the run's first update, and would blow up old
# ones. That of the dense half is counted by a state of its own.
MOMENTS = ("exp_avg", "exp_avg_sq")
DENSE = "dense/"


def starts_warm(settings: CheckpointSettings) -> bool:
    return bool(settings.init_from or settings.init_tables)


def warm_start(job: Job) -> str:
    """Copies what `checkpoint.init_*` asks for; the step stays at the start. Returns the report.

    Raises: ConfigError for a name that is not there, and if nothing matches.
    """
    settings, lines = job.checkpoint, []
    if settings.init_from:
        lines += _from_run(job, Path(settings.init_from))
    for table, given in (settings.init_tables or {}).items():
        lines += _table_from(job, table, Path(given["from"]), given.get("table") or table)
    return "\n".join(lines)


def renamed(names: Iterable[str], asked: Mapping[str, str | None]) -> dict[str, str | None]:
    """Our names -> theirs; None: not to be taken. A key is a name or the beginning of some, the
    longest that fits counts. Raises: ConfigError for a key that no name begins with."""
    names = list(names)
    for key in asked:
        if not any(_begins(name, key) for name in names):
            raise ConfigError(f"checkpoint.init_names.{key}: no weight{nearest(key, names, 3)}")
    found: dict[str, str | None] = {}
    for name in names:
        key = max((k for k in asked if _begins(name, k)), key=len, default="")
        other = asked.get(key, "")
        found[name] = None if other is None else other + name[len(key) :]
    return found


def _begins(name: str, key: str) -> bool:
    return name.startswith(key) and (key[-1:] in "./" or name[len(key) :][:1] in ("", ".", "/"))


def _from_run(job: Job, path: Path) -> list[str]:
    source, ours = Source.of(job, path), weights(job.context)
    asked = job.checkpoint.init_names or {}
    names = renamed(ours, asked)
    for key, other in asked.items():
        if other is not None and not any(_begins(name, other) for name in source.shapes):
            raise ConfigError(
                f"checkpoint.init_names.{key}={other}: {path} has no such weight"
                f"{nearest(other, source.shapes, 3)}"
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
    copy_taken(source, {n: (ours[n], other) for n, other in taken.items()}, by_rows)
    if job.checkpoint.init_optimizer:
        lines += _optimizer(job, source, taken, by_rows)
    unused = set(source.shapes) - set(taken.values())
    unused = {n for n in unused if n.startswith(DENSE) or is_table(n)}
    head = f"warm start from {source.saved.path}: {len(taken)} of {len(ours)} weights taken"
    return [head, *lines, *(f"  there, not used: {n}" for n in sorted(unused))]


def _fit(source: Source, name: str, other: str, tensor: Tensor) -> tuple[str, RowMap | None]:
    """Why a weight cannot be taken, or nothing; and its rows, if not all are their own."""
    if other not in source.shapes:
        looked_for = f" ({other})" if other != name else ""
        return f"not there, initialised afresh: {name}{looked_for}", None
    shape, theirs, rows = tuple(tensor.shape), source.shapes[other], None
    if is_table(name) and is_table(other) and shape[1:] == theirs[1:]:
        try:
            rows = source.rows(name, other, shape[0], theirs[0])
        except ConfigError as error:
            return f"not taken: {error}", None
    if shape != theirs and rows is None:
        return f"shape differs: {name} ({theirs} there, {shape} here)", None
    return "", rows


def _table_from(job: Job, table: str, path: Path, other: str) -> list[str]:
    """One table of this run from one of another, which may be wider spread or have fewer rows."""
    key = f"checkpoint.init_tables.{table}"
    source, ours = Source.of(job, path), weights(job.context)
    name, theirs = f"{TABLES}{table}/weight", f"{TABLES}{other}/weight"
    for wanted, known, where in ((name, ours, key), (theirs, source.shapes, f"{key}.table")):
        if wanted not in known:
            tables = [n.split("/")[1] for n in known if is_table(n)]
            asked = wanted.split("/")[1]
            raise ConfigError(f"{where}: no table {asked!r}{nearest(asked, tables)}")
    shape, found = tuple(ours[name].shape), source.shapes[theirs]
    if shape[1:] != found[1:]:
        raise ConfigError(f"{key}: is {shape[1]} wide, {other!r} of {path} {found[1]}")
    try:
        rows = source.rows(name, theirs, shape[0], found[0])
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    both = np.arange(min(shape[0], found[0]))
    rows = rows or RowMap(both, both)
    taken, by_rows = {name: theirs}, {name: rows}
    copy_taken(source, {name: (ours[name], theirs)}, by_rows)
    head = f"warm start of {name} from {theirs} of {source.saved.path}"
    more = _optimizer(job, source, taken, by_rows) if job.checkpoint.init_optimizer else []
    return [head, _told(name, rows, shape[0]), *more]


def _optimizer(
    job: Job, source: Source, taken: Mapping[str, str], by_rows: Mapping[str, RowMap]
) -> list[str]:
    """States of the weights that were taken, where the optimizers keep the same ones."""
    copied: dict[str, tuple[Tensor, str]] = {}
    maps: dict[str, RowMap] = {}
    lines = []
    for key, tensor in job.context.tables.state().items():
        name, _, state = f"{TABLES}{key}".rpartition("/")
        weight = f"{name}/weight"
        if weight not in taken or state == "weight":
            continue
        other = f"{taken[weight].removesuffix('weight')}{state}"
        fits = source.shapes.get(other, (0, 0))[1:] == tuple(tensor.shape[1:])
        if state in MOMENTS:
            lines.append(f"  optimizer's, not taken: {name}/{state} (its updates count anew)")
        elif other not in source.shapes or not fits:
            lines.append(f"  optimizer's, not there: {name}/{state}")
        else:
            copied[f"{name}/{state}"] = (tensor, other)
            maps |= {f"{name}/{state}": by_rows[weight]} if weight in by_rows else {}
    dense, more = _dense_states(job, source, taken)
    copy_taken(source, copied | dense, maps)
    return [*lines, *more, f"  optimizer's: {len(copied) + len(dense)} states taken"]


def _dense_states(
    job: Job, source: Source, taken: Mapping[str, str]
) -> tuple[dict[str, tuple[Tensor, str]], list[str]]:
    """States made for the dense weights that were taken, and what they are called there."""
    optimizers = list(job.context.optimizers().values())
    parameters = parameters_of(job.context)
    saved = source.saved.values["dense_optimizer"]
    states, others, lines = {}, {}, []
    for optimizer in optimizers:
        kept = probe_states(optimizer)
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in parameters.items():
            if id(parameter) not in owned or f"{DENSE}{name}" not in taken or not kept:
                continue
            others[name] = taken[f"{DENSE}{name}"].removeprefix(DENSE)
            if set(saved.get(others[name], {})) == kept:
                states[name] = saved[others[name]]
            else:
                lines.append(f"  optimizer's, not there or of another kind: {DENSE}{name}")
    if not states:
        return {}, lines
    create_states(optimizers, parameters, states)
    made = {k: t for o in optimizers for k, t in dense_state(o, parameters).items()}
    found = {}
    for name in states:
        for key in (k for k in made if k.startswith(f"{name}/")):
            other = f"dense_optimizer/{others[name]}{key[len(name) :]}"
            found[f"dense_optimizer/{key}"] = (made[key], other)
    return found, lines


def _told(name: str, rows: RowMap, num_rows: int) -> str:
    return f"  {name}: {len(rows.ours):,} of {num_rows:,} rows found there, the others afresh"


def _example(shapes: Mapping[str, Any]) -> str:
    name = min(shapes)
    return f"{name} {tuple(getattr(shapes[name], 'shape', shapes[name]))}"
