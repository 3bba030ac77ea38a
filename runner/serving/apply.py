"""`apply MODEL DELTA...`: an artifact with the weights of a later version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import UserError
from runner.rundir.json_files import write_json
from runner.serving.artifact.check_artifact import check_schema
from runner.serving.artifact.delta import Delta, open_delta
from runner.serving.artifact.example_rows import EXAMPLE, ids_in_range, write_example
from runner.serving.artifact.folder import (
    METRICS,
    SCHEMA,
    SCORE,
    Artifact,
    open_artifact,
    write_manifest,
)
from runner.serving.artifact.weights import read_artifact_weights, write_graph
from runner.serving.items.item_table import (
    ITEMS,
    read_item_table,
    read_query_rows,
    write_item_table,
)
from runner.serving.items.item_vectors import with_vectors_of, write_queries
from runner.serving.scorer import Scorer
from runner.serving.write_aside import write_aside

_ANEW = ("files", "version", "format_version")  # keys of a manifest that are written anew


def apply_deltas(
    model: Path | str, deltas: Sequence[Path | str], out: Path, *, trust_native_code: bool = False
) -> Artifact:
    """Write an artifact with the weights and transforms after all deltas.

    Weights are bit-equal to those of a whole export of the last delta's checkpoint.

    Args:
        model: the whole artifact that is the base of the first delta.
        deltas: in any order; each but the first is on the version of another one.
        out: the folder to write, which must not exist.
        trust_native_code: whether machine code may be run, for `example.npz`.

    Raises:
        UserError: for a delta with another base, a folder that is damaged or cannot be written,
            machine code that is not trusted, and what a format cannot hold; nothing is written.
    """
    base = open_artifact(model)
    check_schema(base, base.path)
    if "aoti" in base.formats and not trust_native_code:
        raise UserError(
            f"{model}: holds machine code, which is run once for {EXAMPLE}; --trust-native-code "
            "allows it for an artifact of your own"
        )
    artifact, opened = base, []
    weights = read_artifact_weights(base)
    changed: set[str] = set()
    for delta in in_order([open_delta(path) for path in deltas], base.version):
        delta.check_base(artifact)
        new = delta.changed_weights(base.graphs, weights)
        weights |= new
        changed |= new.keys()
        artifact = delta.applied_to(artifact)
        check_schema(artifact, delta.path)
        opened.append(delta)
    with write_aside(out) as folder:
        for spec in base.graphs:
            prefix = f"{spec.name}/"
            tensors = {k.removeprefix(prefix): weights[k] for k in changed if k.startswith(prefix)}
            for format_ in base.formats:
                write_graph(base, spec.name, format_, tensors, folder)
        _copy_others(base, opened, folder)
        write_example(folder, base.formats, _example_inputs(artifact))
        write_json(folder / METRICS, _last_metrics(base, opened))
        facts = _facts(artifact, opened)
        write_manifest(folder, facts, artifact.version)
        if ITEMS in base.manifest["files"]:
            scorer = Scorer.load(folder, trust_native_code=trust_native_code)
            write_item_table(folder, with_vectors_of(read_item_table(base), scorer))
            write_queries(folder, scorer, read_query_rows(base))
            write_manifest(folder, facts, artifact.version)
    return open_artifact(out)


def in_order(deltas: Sequence[Delta], version: str) -> Iterator[Delta]:
    """Yield deltas so that each is on the version of the one before, as far as there is one.

    Their names do not tell it, since steps begin anew with each run that delivers.
    """
    remaining = list(deltas)
    while remaining:
        delta = next((d for d in remaining if d.base == version), remaining[0])
        remaining.remove(delta)
        yield delta
        version = delta.version


def _copy_others(base: Artifact, deltas: Sequence[Delta], folder: Path) -> None:
    """Copy the schema and vocabularies from the last delta that has them, and `score.py`."""
    source, files = base.path, base.manifest["files"]
    for delta in deltas:
        if SCHEMA in delta.manifest["files"]:
            source, files = delta.path, delta.manifest["files"]
    vocabularies = json.loads((source / SCHEMA).read_text())["vocabularies"].values()
    for name in files.keys() & {SCHEMA, *vocabularies}:
        shutil.copyfile(source / name, folder / name)
    shutil.copyfile(base.path / SCORE, folder / SCORE)


def _example_inputs(artifact: Artifact) -> dict[str, np.ndarray]:
    """Return the inputs of the base's example; ids whose row was deleted become unknown ones."""
    with np.load(artifact.path / EXAMPLE, allow_pickle=False) as example:
        return {
            f"{spec.name}/{name}": values
            for spec in artifact.graphs
            for name, values in ids_in_range(
                spec, artifact.raw, {name: example[f"{spec.name}/{name}"] for name in spec.inputs}
            ).items()
        }


def _last_metrics(base: Artifact, deltas: Sequence[Delta]) -> dict[str, Any]:
    """Return the latest metrics, with the version that they were measured on."""
    metrics: dict[str, Any] = json.loads((base.path / METRICS).read_text())
    content = {"measured": {"version": base.version, "step": base.step}, **metrics}
    for delta in deltas:
        if METRICS in delta.manifest["files"]:
            measured = {"version": delta.version, "step": delta.step}
            content = {"measured": measured, **json.loads((delta.path / METRICS).read_text())}
    return content


def _facts(artifact: Artifact, deltas: Sequence[Delta]) -> Mapping[str, Any]:
    facts = {key: value for key, value in artifact.manifest.items() if key not in _ANEW}
    applied = [{"version": d.version, "base": d.base, "step": d.step} for d in deltas]
    return {**facts, "deltas": [*facts.get("deltas", []), *applied]}
