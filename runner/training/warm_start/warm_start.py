"""Warm start: takes all or some weights of other runs, also if their names differ.

If both runs have a vocabulary for a table, rows are matched by value, whatever their number in the
source; if neither has one, by number.
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
from runner.training.warm_start.other_columns import describe_other_columns
from runner.training.warm_start.source import (
    DENSE_PREFIX,
    TABLES_PREFIX,
    RowMap,
    WarmStartSource,
    copy_matched_tensors,
    is_table_weight,
)


def wants_warm_start(settings: CheckpointSettings) -> bool:
    """Return whether a new run takes weights of others."""
    return bool(settings.init_from or settings.init_tables)


def warm_start(job: Job) -> str:
    """Copy the weights that `checkpoint.init_*` names; the run still starts at step 0.

    Returns:
        A report of the weights that were taken, and of those that were not.

    Raises:
        ConfigError: for a name that does not exist, and if nothing matches.
    """
    settings = job.checkpoint
    lines: list[str] = []
    matches: list[MatchedWeights] = []
    if settings.init_from:
        match, match_lines = _take_run(job, Path(settings.init_from))
        matches.append(match)
        lines += match_lines
    for table, node in (settings.init_tables or {}).items():
        match, match_lines = _take_table(job, table, Path(node["from"]), node.get("table") or table)
        matches.append(match)
        lines += match_lines
    if settings.init_optimizer:
        lines += copy_optimizer_states(job, matches)
    return "\n".join(lines)


def map_weight_names(
    names: Iterable[str], init_names: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the name in the source for each of our weights; None: it is not taken.

    Args:
        init_names: `checkpoint.init_names`: a name or a prefix of names -> its replacement. The
            longest matching prefix counts; other names stay.

    Raises:
        ConfigError: for a key that is no prefix of any name.
    """
    names = list(names)
    for key in init_names:
        if not any(_has_prefix(name, key) for name in names):
            raise ConfigError(
                f"checkpoint.init_names.{key}: no weight{nearest_hint(key, names, 3)}"
            )
    source_names: dict[str, str | None] = {}
    for name in names:
        key = max((k for k in init_names if _has_prefix(name, k)), key=len, default="")
        other = init_names.get(key, "")
        source_names[name] = None if other is None else other + name[len(key) :]
    return source_names


def _has_prefix(name: str, key: str) -> bool:
    """Return whether a name begins with a key, which ends at a dot, a slash or the name's end."""
    return name.startswith(key) and (key[-1:] in "./" or name[len(key) :][:1] in ("", ".", "/"))


def _take_run(job: Job, path: Path) -> tuple[MatchedWeights, list[str]]:
    """Take all weights of a run that match by name and shape.

    Raises:
        ConfigError: for a replacement of `checkpoint.init_names` that the run does not have, and if
            nothing matches.
    """
    source, ours = WarmStartSource.open(job, path), weight_tensors(job.context)
    init_names = job.checkpoint.init_names or {}
    names = map_weight_names(ours, init_names)
    for key, other in init_names.items():
        if other is not None and not any(_has_prefix(name, other) for name in source.shapes):
            raise ConfigError(
                f"checkpoint.init_names.{key}={other}: {path} has no such weight"
                f"{nearest_hint(other, source.shapes, 3)}"
            )
    sources: dict[str, str] = {}
    row_maps: dict[str, RowMap] = {}
    lines = []
    for name, other in names.items():
        if other is None:
            lines.append(f"  left as it is: {name}")
            continue
        problem, rows = _match(source, name, other, ours[name])
        if problem:
            lines.append(f"  {problem}")
            continue
        sources[name] = other
        if rows is not None:
            row_maps[name] = rows
            lines.append(_describe_rows(name, rows, len(ours[name])))
    if not any(ours[name].dim() > 1 for name in sources):  # a bias of one number matches by chance
        raise ConfigError(
            f"checkpoint.init_from={path}: no table and no matrix of it matches by name and "
            f"shape; here, for example, {_example(ours)}, there {_example(source.shapes)}"
        )
    schema = job.config.get("dataset", {}).get("schema")
    lines += [f"  {line}" for line in describe_other_columns(schema, source.schema_file, sources)]
    lines += [f"  {line}" for line in source.refitted]
    averages, average_lines = _match_averages(job, source, sources)
    matched = {n: (ours[n], averages.get(n, other)) for n, other in sources.items()}
    copy_matched_tensors(source, matched, row_maps)
    job.context.tables.take_over_weights()
    unused = set(source.shapes) - set(sources.values())
    unused = {n for n in unused if n.startswith(DENSE_PREFIX) or is_table_weight(n)}
    head = f"warm start from {source.saved.path}: {len(sources)} of {len(ours)} weights taken"
    lines = [head, *lines, *(f"  in the source, not used: {n}" for n in sorted(unused))]
    return MatchedWeights(source, sources, row_maps), lines + average_lines


def _match_averages(
    job: Job, source: WarmStartSource, sources: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the moving averages to take in place of weights, by our names, and report lines.

    Raises:
        ConfigError: if averages are asked for and the source has none.
    """
    source_averages = [name for name in source.shapes if name.startswith(EMA_PREFIX)]
    if not job.checkpoint.init_average:
        if not source_averages:
            return {}, []
        return {}, [
            f"  in the source, not used: moving averages of {len(source_averages)} dense weights, "
            "which its evaluations took unless its trainer.ema.evaluate was false; "
            "checkpoint.init_average=true starts from them"
        ]
    if not source_averages:
        raise ConfigError(
            f"checkpoint.init_average=true: {source.saved.path} holds no moving average: its run "
            "kept none; false takes its weights"
        )
    averages = {
        name: f"{EMA_PREFIX}{other.removeprefix(DENSE_PREFIX)}" for name, other in sources.items()
    }
    averages = {name: other for name, other in averages.items() if other in source.shapes}
    num_dense = sum(other.startswith(DENSE_PREFIX) for other in sources.values())
    line = f"  moving averages taken for {len(averages)} of {num_dense} dense weights"
    return averages, [line]


def _match(
    source: WarmStartSource, name: str, other: str, tensor: Tensor
) -> tuple[str, RowMap | None]:
    """Return why a weight cannot be taken, or empty; and its row map, if rows change places."""
    if other not in source.shapes:
        looked_for = f" ({other})" if other != name else ""
        return f"not in the source, newly initialised: {name}{looked_for}", None
    shape, source_shape, rows = tuple(tensor.shape), source.shapes[other], None
    if is_table_weight(name) and is_table_weight(other) and shape[1:] == source_shape[1:]:
        try:
            rows = source.map_rows(name, other, shape[0], source_shape[0])
        except ConfigError as error:
            return f"not taken: {error}", None
    if shape != source_shape and rows is None:
        return f"shape differs: {name} ({source_shape} in the source, {shape} here)", None
    return "", rows


def _take_table(
    job: Job, table: str, path: Path, source_table: str
) -> tuple[MatchedWeights, list[str]]:
    """Take one table from a run, which may have another sharding or another number of rows.

    Raises:
        ConfigError: if there is no such table here or in the source, or its rows do not fit.
    """
    key = f"checkpoint.init_tables.{table}"
    source, ours = WarmStartSource.open(job, path), weight_tensors(job.context)
    name, theirs = f"{TABLES_PREFIX}{table}/weight", f"{TABLES_PREFIX}{source_table}/weight"
    for weight, known, where in ((name, ours, key), (theirs, source.shapes, f"{key}.table")):
        if weight not in known:
            tables = [n.split("/")[1] for n in known if is_table_weight(n)]
            missing = weight.split("/")[1]
            raise ConfigError(f"{where}: no table {missing!r}{nearest_hint(missing, tables)}")
    shape, source_shape = tuple(ours[name].shape), source.shapes[theirs]
    if shape[1:] != source_shape[1:]:
        raise ConfigError(
            f"{key}: is {shape[1]} wide, and {source_table!r} of {path} {source_shape[1]}; "
            f"model.net.embedding_dim={source_shape[1]} makes it as wide"
        )
    try:
        rows = source.map_rows(name, theirs, shape[0], source_shape[0])
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    shared = np.arange(min(shape[0], source_shape[0]))
    row_maps = {name: rows or RowMap(shared, shared)}
    copy_matched_tensors(source, {name: (ours[name], theirs)}, row_maps)
    job.context.tables.take_over_weights()
    head = f"warm start of {name} from {theirs} of {source.saved.path}"
    match = MatchedWeights(source, {name: theirs}, row_maps)
    return match, [head, _describe_rows(name, row_maps[name], shape[0])]


def _describe_rows(name: str, rows: RowMap, num_rows: int) -> str:
    line = f"  {name}: {len(rows.ours):,} of {num_rows:,} rows are in the source, others are new"
    if not rows.num_left_out:
        return line
    return (
        f"{line}; {rows.num_left_out:,} values of the source are not in the data of this run, and "
        "their rows are not taken (`encode: growing` keeps them)"
    )


def _example(shapes: Mapping[str, Any]) -> str:
    name = min(shapes)
    return f"{name} {tuple(getattr(shapes[name], 'shape', shapes[name]))}"
