"""Checks an artifact: that its graphs may be loaded, and fit `schema.json`. Imports no torch.

Hashes show damage, but not that the files were consistent when they were written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import IdSpec, NumericSpec
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.errors import UserError, describe_error, unknown_choice
from runner.serving.artifact.delta_moves import iterate_stacks
from runner.serving.artifact.folder import (
    EXPORT_AGAIN,
    MANIFEST,
    SCHEMA,
    Artifact,
    GraphSpec,
    graph_file,
    open_artifact,
)
from runner.serving.artifact.loaded_graph import LoadedGraph
from runner.serving.artifact.raw_rows import encode_rows, graph_features
from runner.serving.rows.encode import Transforms

_GRAPHS = (("model",), ("query", "items"))
_KINDS = ("binary", "regression")


def check_artifact(
    path: Path | str, format: str | None, trust_native_code: bool
) -> tuple[Artifact, str]:
    """Open an artifact, and choose the format whose graphs are loaded. Imports no torch.

    Args:
        format: one of those in the artifact; None: the first of them.
        trust_native_code: whether an AOTInductor package may be loaded.

    Raises:
        UserError: as `Scorer.load`, except for problems found while a graph is loaded.
    """
    artifact = open_artifact(path)
    chosen = artifact.formats[0] if format is None else format
    if chosen not in artifact.formats:
        raise UserError(unknown_choice("format", chosen, artifact.formats))
    if chosen == "aoti" and not trust_native_code:
        raise UserError(
            f"{path}: holds machine code, which runs with all your rights when it is loaded; "
            "trust_native_code=True (--trust-native-code) loads an artifact of your own"
        )
    for spec in artifact.graphs:
        name = graph_file(spec.name, chosen)
        if name not in artifact.manifest["files"]:
            raise UserError(f"{path}: {MANIFEST} lists no {name}; {EXPORT_AGAIN}")
    check_schema(artifact, artifact.path)
    return artifact, chosen


def trusted_formats(artifact: Artifact, trust_native_code: bool) -> tuple[str, ...]:
    """Return the formats of an artifact that may be run: machine code only if it is trusted."""
    return tuple(name for name in artifact.formats if trust_native_code or name != "aoti")


def check_schema(artifact: Artifact, path: Path) -> None:
    """Check that the graphs, columns and fitted values of a model fit each other.

    Args:
        artifact: the model, or the model after a delta.
        path: the folder of its `schema.json`, for messages.

    Raises:
        UserError: naming the file, and the column or graph that does not fit.
    """
    try:
        problem = next(_find_problems(artifact), None)
        if problem is None:  # run every transform on a row of missing values
            missing = {name: pa.nulls(1) for name in artifact.raw.declared.columns}
            encode_rows(artifact.raw, missing, graph_features(artifact.graphs), skip_bad_rows=True)
    except Exception as error:  # of any kind: the schema may hold anything
        problem = describe_error(error)
    if problem is not None:
        raise UserError(_contradiction(path, problem))


def check_graphs(artifact: Artifact, graphs: Mapping[str, LoadedGraph], path: Path) -> None:
    """Check that loaded graphs have the tables and take the inputs of the schema.

    Args:
        artifact: checked by `check_schema`.
        path: as in `check_schema`.

    Raises:
        UserError: as `check_schema`.
    """
    for spec in artifact.graphs:
        problem = next(_find_other_rows(spec, graphs[spec.name], artifact.raw), None)
        try:
            if problem is None:
                problem = _try_graph(spec, graphs[spec.name], len(artifact.tasks))
        except Exception as error:  # torch's and onnxruntime's have no kind in common
            problem = f"the graph {spec.name!r} does not take its inputs: {describe_error(error)}"
        if problem is not None:
            raise UserError(_contradiction(path, problem))


def _contradiction(path: Path, problem: str) -> str:
    return f"{path / SCHEMA}: contradicts itself or the graphs: {problem}; {EXPORT_AGAIN}"


def _find_problems(artifact: Artifact) -> Iterator[str]:
    graphs, raw = artifact.graphs, artifact.raw
    names = tuple(spec.name for spec in graphs)
    if names not in _GRAPHS:
        yield f"its graphs are {', '.join(names) or 'none'}, and not model, or query and items"
    for task in artifact.tasks:
        if task.kind not in _KINDS:
            yield f"task {task.name!r} is of kind {task.kind!r}, and not {' or '.join(_KINDS)}"
    if len(graphs) > 1 and len(artifact.tasks) != 1:
        yield f"it has {len(artifact.tasks)} tasks, and a model of queries and items has one"
    ids = {spec.name: spec for spec in raw.declared.ids}
    numbers = {spec.name for spec in raw.declared.numeric}
    for spec in graphs:
        yield from _find_in_graph(spec, ids, numbers, tuple(t.name for t in artifact.tasks))
    for number in raw.declared.numeric:
        yield from _find_in_number(number, raw)
    for one in raw.declared.ids:
        yield from _find_in_ids(one, raw)


def _find_in_graph(
    spec: GraphSpec, ids: Mapping[str, IdSpec], numbers: set[str], tasks: tuple[str, ...]
) -> Iterator[str]:
    reads = f"the graph {spec.name!r} reads"
    for name in spec.dense:
        if name not in numbers:
            yield f"{reads} the number {name!r}, which its columns do not have"
    for name in (*(n for g in spec.groups for n in g.features), *(s.name for s in spec.sequences)):
        if name not in ids:
            yield f"{reads} the ids {name!r}, which its columns do not have"
    for group in spec.groups:
        if group.weighted != any(ids[name].weights for name in group.features):
            which = next((n for n in group.features if ids[n].weights), group.features[0])
            yield f"{reads} column {which!r} with weights where its column has none, or the reverse"
    for sequence in spec.sequences:
        if not 0 < ids[sequence.name].max_length <= sequence.max_length:
            yield (
                f"{reads} {sequence.max_length} ids of {sequence.name!r}, whose column has "
                f"{ids[sequence.name].max_length}"
            )
    outputs = ("logits", *tasks) if spec.name == "model" else ("vectors",)
    if spec.outputs != outputs:
        yield f"the graph {spec.name!r} gives {spec.outputs}, and its tasks need {outputs}"


def _find_in_number(spec: NumericSpec, raw: Transforms) -> Iterator[str]:
    moments = raw.fitted.moments.get(spec.name)
    if spec.standardise and moments is None:
        yield f"column {spec.column!r} is standardised, and has no mean and deviation"
    if moments is not None and not (len(moments) == 2 and all(map(math.isfinite, moments))):
        yield f"column {spec.column!r} has no mean and deviation: {moments}"


def _find_in_ids(spec: IdSpec, raw: Transforms) -> Iterator[str]:
    fitted, column = raw.fitted, f"column {spec.column or spec.name!r}"
    num_rows = fitted.num_rows.get(spec.table_name)
    if type(num_rows) is not int or num_rows < 1:
        yield f"{column}: its table {spec.table_name!r} has {num_rows} rows"
        return
    if spec.encode == "vocabulary":
        values = fitted.vocabularies.get(spec.table_name)
        if values is None:
            yield f"{column}: its table {spec.table_name!r} has no vocabulary"
        elif FIRST_VALUE_ID + len(values) > num_rows:
            yield f"{column}: {num_rows} rows are too few for its {len(values)} values"
    elif spec.encode == "bucketise" and spec.name not in fitted.boundaries:
        yield f"{column}: has no boundaries between its buckets"


def _find_other_rows(spec: GraphSpec, graph: LoadedGraph, raw: Transforms) -> Iterator[str]:
    """Yield features whose table has another number of rows in the graph than in the schema."""
    tables = {one.name: one.table_name for one in raw.declared.ids}
    for *names, features in iterate_stacks(spec):
        stack, first = (name.removeprefix(f"{spec.name}/") for name in names)
        weights = (graph.weight(f"{stack}.{part}") for part in ("weight", "codes"))
        first_weight = next((weight for weight in weights if weight is not None), None)
        starts = graph.weight(first) if first else np.zeros(1, np.int64)
        if first_weight is None or starts is None:
            continue  # ONNX and machine code may have folded them into others
        ends = sorted({*starts.tolist(), len(first_weight)})
        for name, start in zip(features, starts.tolist()):
            rows = ends[min(ends.index(start) + 1, len(ends) - 1)] - start
            expected = raw.fitted.num_rows[tables[name]]
            if rows != expected:
                yield f"the table of {name!r} has {expected:,} rows, and in {spec.name!r} {rows:,}"


def _try_graph(spec: GraphSpec, graph: LoadedGraph, num_tasks: int) -> str | None:
    """Run a graph on one row of ids 0; return what is wrong with its outputs, or None."""
    inputs: dict[str, Any] = {"dense": np.zeros((1, len(spec.dense)), np.float32)}
    for n, group in enumerate(spec.groups):
        inputs[f"values_{n}"] = np.zeros(len(group.features), np.int64)
        inputs[f"lengths_{n}"] = np.ones((len(group.features), 1), np.int64)
        inputs[f"weights_{n}"] = np.ones(len(group.features), np.float32)
    for n, sequence in enumerate(spec.sequences):
        inputs[f"ids_{n}"] = np.zeros((1, sequence.max_length), np.int64)
        inputs[f"length_{n}"] = np.ones(1, np.int64)
    outputs = graph([inputs[name] for name in spec.inputs])
    if len(outputs) != len(spec.outputs):
        return f"the graph {spec.name!r} gives {len(outputs)} outputs, and not {spec.outputs}"
    if spec.name == "model" and outputs[0].shape != (1, num_tasks):
        return f"the graph {spec.name!r} gives logits {outputs[0].shape} of {num_tasks} tasks"
    return None
