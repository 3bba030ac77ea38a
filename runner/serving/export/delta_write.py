"""Writes deltas: the bitwise difference of the weights of two versions of one model.

It works with any optimizer, and needs nothing of the training but its weights.
R rows of stacked tables, D width.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.batch import Schema
from runner.data.prepare.recipe import hash_json
from runner.errors import UserError
from runner.models.layers.recommender import Recommender
from runner.serving.artifact.delta import CARRIED, DELETED, INSERTED, KIND, ROWS, WEIGHTS, move_rows
from runner.serving.artifact.delta_moves import RowMove, is_table_weight
from runner.serving.artifact.folder import (
    EXPORT_WHOLE,
    FORMAT_VERSION,
    MANIFEST,
    Artifact,
    GraphSpec,
    Task,
    hash_files,
    write_schema,
)
from runner.serving.artifact.loaded_graph import write_weights
from runner.serving.export.graphs import TableChoice, build_graphs, without_tables
from runner.serving.rows.encode import Transforms

_CHUNK_ROWS = 1 << 16
# keys of a manifest that must be equal in two versions of one model
SAME_FACTS = ("architecture", "quantise", "weights")


@dataclass(frozen=True)
class ModelVersion:
    """The content of a whole artifact except the code of its graphs."""

    facts: Mapping[str, Any]  # of its manifest
    graphs: tuple[GraphSpec, ...]  # what its graphs take
    tasks: tuple[Task, ...]  # its outputs
    raw: Transforms  # its transforms
    weights: Mapping[str, np.ndarray]  # `<graph>/<weight>` -> values


def graph_weights(
    model: Recommender, schema: Schema, choice: TableChoice
) -> tuple[tuple[GraphSpec, ...], dict[str, np.ndarray]]:
    """Return the specifications of a model's graphs, and their weights by `<graph>/<weight>`.

    Weights of the model are copied, since training may go on; those of `choice` are not.
    """
    weights = {}
    graphs = build_graphs(model, schema, choice)
    with without_tables(model), torch.no_grad():
        for spec, module in graphs:
            for name, tensor in module.state_dict().items():
                is_ours = choice.weights is None or name.startswith("model.")
                copied = tensor.clone() if is_ours else tensor
                weights[f"{spec.name}/{name}"] = copied.numpy()
    return tuple(spec for spec, _ in graphs), weights


@dataclass(frozen=True)
class Difference:
    """What changed between two versions."""

    weights: dict[str, np.ndarray] = field(default_factory=dict)  # as `Delta.weights`
    moved: dict[str, RowMove] = field(default_factory=dict)  # by table
    is_empty: bool = False


def check_same_model(base: Artifact, new: ModelVersion) -> None:
    """Check that the two are versions of one model, so that a delta can be written.

    Raises:
        UserError: naming what differs.
    """
    for name in SAME_FACTS:
        before, now = base.manifest.get(name, "not recorded"), new.facts[name]
        if before != now:
            raise UserError(
                f"{base.path}: cannot be updated by a delta: its {name} is {before}, and that "
                f"of the new version is {now}: {EXPORT_WHOLE}"
            )
    if base.graphs != new.graphs or base.tasks != new.tasks:
        raise UserError(
            f"{base.path}: cannot be updated by a delta: it reads other features or predicts "
            f"other tasks than the new version: {EXPORT_WHOLE}"
        )


def find_difference(
    base: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    moves: Mapping[str, RowMove] | None = None,
) -> Difference:
    """Compare weights bit by bit: tables by row, other weights as a whole.

    Args:
        base: `<graph>/<weight>` -> values; a format may lack some.
        new: as `base`, complete.
        moves: by `find_moves`.

    Raises:
        UserError: for a weight whose type or shape changed, except for a table's number of rows.
    """
    difference, anything = Difference(moved=dict(moves or {})), bool(moves)
    for key, values in new.items():
        old = base.get(key)
        is_table = is_table_weight(key)
        rest = slice(1, None) if is_table else slice(None)
        if old is None and is_table:
            raise UserError(f"the base has no table {key}: {EXPORT_WHOLE}")
        if old is not None and (old.dtype, old.shape[rest]) != (values.dtype, values.shape[rest]):
            raise UserError(
                f"{key} is {old.dtype} {list(old.shape)} in the base, and {values.dtype} "
                f"{list(values.shape)} in the new version: {EXPORT_WHOLE}"
            )
        if not is_table:
            difference.weights[key] = np.ascontiguousarray(values)
            anything |= old is not None and old.tobytes() != values.tobytes()
            continue
        assert old is not None
        is_changed_R = np.zeros(len(values), bool)
        move = difference.moved.get(key)
        if move is not None:
            old = move_rows(old, move.deleted, move.inserted)
            is_changed_R[move.inserted] = True
            difference.weights[key + DELETED] = _numbers(move.deleted)
            difference.weights[key + INSERTED] = _numbers(move.inserted)
        is_changed_R[_differing(old, values)] = True
        rows = np.flatnonzero(is_changed_R)
        if len(rows) or move is not None:
            difference.weights[key] = np.ascontiguousarray(values[rows])
            difference.weights[key + ROWS] = _numbers(rows)
            anything = True
    return Difference(difference.weights, difference.moved, is_empty=not anything)


def _numbers(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.int32 if not len(rows) or rows[-1] < 2**31 else np.int64)


def _differing(old_RD: np.ndarray, new_RD: np.ndarray) -> np.ndarray:
    words = next(f"u{size}" for size in (8, 4, 2, 1) if old_RD[:1].nbytes % size == 0)
    old, new = (np.ascontiguousarray(x).view(words) for x in (old_RD, new_RD))
    parts = [
        start + np.flatnonzero((old[start:stop] != new[start:stop]).any(axis=1))
        for start, stop in ((s, s + _CHUNK_ROWS) for s in range(0, len(old), _CHUNK_ROWS))
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def write_delta(folder: Path, base: Artifact, new: ModelVersion, difference: Difference) -> None:
    """Write a delta into an existing empty folder.

    Raises:
        UserError: if the two are not versions of one model.
    """
    check_same_model(base, new)
    write_weights(folder / WEIGHTS, difference.weights)
    if new.raw is not base.raw:
        _write_changed_schema(folder, base, new)
    write_delta_manifest(folder, base, new, difference)


def _write_changed_schema(folder: Path, base: Artifact, new: ModelVersion) -> None:
    """Write the schema and all vocabularies if any of these files changed."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        before, now = Path(name) / "before", Path(name) / "now"
        for path, version in ((before, base), (now, new)):
            path.mkdir()
            write_schema(path, version.graphs, version.tasks, version.raw)
        names = sorted(file.name for file in now.iterdir())
        is_same_set = sorted(os.listdir(before)) == names
        if is_same_set and filecmp.cmpfiles(before, now, names, shallow=False)[0] == names:
            return
        for file in names:
            shutil.move(now / file, folder / file)


def write_delta_manifest(
    folder: Path, base: Artifact, new: ModelVersion, difference: Difference
) -> None:
    """Write `manifest.json` of a delta, with the sha256 of every file."""
    content = {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "base": {"version": base.version, "step": base.step},
        **{name: new.facts[name] for name in (*CARRIED, *SAME_FACTS)},
        "rows": {
            key.removesuffix(ROWS): len(values)
            for key, values in difference.weights.items()
            if key.endswith(ROWS)
        },
        "moved": {key: move.facts() for key, move in difference.moved.items()},
        "files": hash_files(folder),
    }
    text = json.dumps({"version": hash_json(content), **content}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")
