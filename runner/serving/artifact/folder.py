"""The folder of an exported model: its files, their hashes, and what its graphs take.

docs/export.md describes the format. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared, IdSpec, NumericSpec
from runner.data.core.blocks import read_parquet
from runner.data.core.fitted import FittedTransforms, write_vocabularies
from runner.data.prepare.recipe import hash_json
from runner.errors import DataError, UserError
from runner.serving.rows.encode import Transforms

FORMAT_VERSION = 1
FORMATS = ("pt2", "aoti", "onnx")
QUANTISATIONS = ("fp16", "int8", "int4")  # of the tables
SUFFIXES = {"pt2": ".pt2", "aoti": ".aoti.pt2", "onnx": ".onnx"}
OWN_HASH = "sha256"  # key of a manifest: the hash of its other keys
MANIFEST, SCHEMA, METRICS, SCORE = "manifest.json", "schema.json", "metrics.json", "score.py"
NO_MODEL = "no exported model; `python -m runner export DIR` writes one"
EXPORT_AGAIN = "export the run again: `python -m runner export DIR --out MODEL`"
EXPORT_WHOLE = "export the model whole: `python -m runner export DIR --out MODEL`"
# raised for JSON that is damaged, or nested too deep
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
WRITE_ANEW = "copy the folder again, or write it anew"


@dataclass(frozen=True)
class LookupGroup:
    """Pooled features whose tables have the same width, and are stacked into one."""

    features: tuple[str, ...]
    weighted: bool = False  # whether the ids have weights


@dataclass(frozen=True)
class SequenceInput:
    """A sequence of ids, padded with 0 at the end."""

    name: str
    max_length: int


@dataclass(frozen=True)
class GraphSpec:
    """What one graph takes and returns.

    Its inputs, in this order: `dense` [B, D] float32, if it reads numbers; for each group n the
    jagged `values_n` [V] int64 and `lengths_n` [F, B] int64, feature-major, and `weights_n` [V]
    float32 if it is weighted; for each sequence n `ids_n` [B, L] int64, the oldest first, and
    `length_n` [B] int64. Ids are rows of the feature's own table.
    """

    name: str  # model, or query and items
    dense: tuple[str, ...]
    groups: tuple[LookupGroup, ...]
    sequences: tuple[SequenceInput, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        names = ["dense"] if self.dense else []
        for n, group in enumerate(self.groups):
            names += [f"values_{n}", f"lengths_{n}"]
            names += [f"weights_{n}"] if group.weighted else []
        for n in range(len(self.sequences)):
            names += [f"ids_{n}", f"length_{n}"]
        return tuple(names)


@dataclass(frozen=True)
class Task:
    """An output: the probability of a binary label or a class, or the value of a regression."""

    name: str
    kind: str
    one_of: str = ""  # for a class: its label


@dataclass(frozen=True)
class Artifact:
    """An exported model whose files have been checked against its manifest."""

    path: Path
    manifest: Mapping[str, Any]
    graphs: tuple[GraphSpec, ...]
    tasks: tuple[Task, ...]
    raw: Transforms  # of the features alone

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(self.manifest["formats"])

    @property
    def classes(self) -> Mapping[str, tuple[int, ...]]:
        """Label with classes -> the positions of its classes among the tasks."""
        labels = dict.fromkeys(task.one_of for task in self.tasks if task.one_of)
        return {
            label: tuple(t for t, task in enumerate(self.tasks) if task.one_of == label)
            for label in labels
        }

    @property
    def version(self) -> str:
        """The model's version, which answers name.

        It is the hash of all files as exported, or the version of the last delta applied since.
        """
        return str(self.manifest["version"])

    @property
    def step(self) -> int | None:
        """The update after which the weights were saved, or None if it is unknown."""
        step: int | None = self.manifest.get("checkpoint", {}).get("step")
        return step


def write_schema(
    folder: Path, graphs: tuple[GraphSpec, ...], tasks: tuple[Task, ...], raw: Transforms
) -> None:
    """Write `schema.json`, and each vocabulary into a Parquet file beside it."""
    names = write_vocabularies(raw.fitted.vocabularies, folder)
    content = {
        "format_version": FORMAT_VERSION,
        "columns": _column_kinds(raw.declared),
        "numeric": [asdict(spec) for spec in raw.declared.numeric],
        "ids": [asdict(spec) for spec in raw.declared.ids],
        "fitted": raw.fitted.json_fields(),
        **({} if raw.decimal == "." else {"decimal": raw.decimal}),
        "vocabularies": names,
        "graphs": [{**asdict(graph), "inputs": graph.inputs} for graph in graphs],
        "tasks": [{k: v for k, v in asdict(task).items() if v} for task in tasks],
    }
    (folder / SCHEMA).write_text(json.dumps(content, indent=1) + "\n")


def _column_kinds(declared: Declared) -> dict[str, str]:
    """Return a description of what each raw column holds."""
    kinds = {
        spec.column: f"vector of {spec.size} numbers" if spec.size else spec.input or "number"
        for spec in declared.numbers
    }
    for spec in declared.ids:
        for column in spec.cross or (spec.column,):
            kinds[column] = "list of ids" if spec.is_list else "id"
            if spec.separator:
                kinds[column] = f"text of ids, separated by {spec.separator!r}"
        kinds |= dict.fromkeys((c for c in (spec.weights, spec.order_by) if c), "list of numbers")
    return kinds | {column: f"time ({form})" for column, form in declared.time_forms.items()}


def read_schema(folder: Path) -> tuple[tuple[GraphSpec, ...], tuple[Task, ...], Transforms]:
    """Read `schema.json` and the vocabularies beside it, whose hashes were verified.

    Raises:
        UserError: for a vocabulary outside the folder, and a file that is damaged.
    """
    try:
        return _read_schema(folder)
    except UserError:
        raise
    except (*_UNREADABLE, pa.ArrowException) as error:
        raise UserError(f"{folder / SCHEMA}: cannot be read: {error!r}") from error


def _read_schema(folder: Path) -> tuple[tuple[GraphSpec, ...], tuple[Task, ...], Transforms]:
    content = json.loads((folder / SCHEMA).read_text())
    files = {
        n: folder / _checked_name(folder / SCHEMA, f) for n, f in content["vocabularies"].items()
    }
    vocabularies = {name: np.asarray(read_parquet(file)["value"]) for name, file in files.items()}
    declared = Declared(
        labels=(),
        numeric=tuple(_make_spec(NumericSpec, values) for values in content["numeric"]),
        ids=tuple(_make_spec(IdSpec, values) for values in content["ids"]),
    )
    graphs = tuple(
        GraphSpec(
            name=graph["name"],
            dense=tuple(graph["dense"]),
            groups=tuple(LookupGroup(tuple(g["features"]), g["weighted"]) for g in graph["groups"]),
            sequences=tuple(SequenceInput(**sequence) for sequence in graph["sequences"]),
            outputs=tuple(graph["outputs"]),
        )
        for graph in content["graphs"]
    )
    for graph, spec in zip(content["graphs"], graphs):
        if tuple(graph.get("inputs", spec.inputs)) != spec.inputs:
            raise UserError(
                f"{folder / SCHEMA}: the inputs of {spec.name!r} are not those of its columns; "
                f"{EXPORT_AGAIN}"
            )
    tasks = tuple(Task(**task) for task in content["tasks"])
    fitted = FittedTransforms(**content["fitted"], vocabularies=vocabularies)
    return graphs, tasks, Transforms(declared, fitted, content.get("decimal", "."))


def _make_spec(kind: type, values: Mapping[str, Any]) -> Any:
    """Build a specification from JSON, where tuples have become lists."""
    known = {f.name for f in fields(kind)}
    as_tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return kind(**{k: v for k, v in as_tuples.items() if k in known})


def write_manifest(folder: Path, facts: Mapping[str, Any], version: str | None = None) -> None:
    """Write `manifest.json` with the sha256 of every file in the folder; it is written last.

    Args:
        facts: its other keys.
        version: of the last delta applied; None: the hash of all files.
    """
    files = hash_files(folder)
    version = version or hash_json(files)
    content = {"format_version": FORMAT_VERSION, "version": version, **facts, "files": files}
    content[OWN_HASH] = _hash_said(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")


def hash_files(folder: Path) -> dict[str, str]:
    """Return relative path -> sha256 of every file in a folder except its manifest."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {p.relative_to(folder).as_posix(): hash_file(p) for p in paths}


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_artifact(path: Path | str) -> Artifact:
    """Open an exported model after every file has been checked against the manifest's hashes.

    The hashes reveal damage. They do not prove who has written the folder.

    Raises:
        UserError: for a folder that is no artifact, is damaged, or is of a later version.
    """
    folder = Path(path)
    manifest = read_manifest(folder, NO_MODEL, remedy=EXPORT_AGAIN)
    verify_files(folder, manifest["files"])
    formats = manifest.get("formats")
    if not isinstance(formats, list) or not formats or any(f not in FORMATS for f in formats):
        raise UserError(
            f"{folder / MANIFEST}: damaged: its formats are no list of {', '.join(FORMATS)}; "
            f"{EXPORT_AGAIN}"
        )
    if SCHEMA not in manifest["files"]:
        raise UserError(f"{folder / MANIFEST}: lists no {SCHEMA}; {EXPORT_AGAIN}")
    check_own_hash(folder, manifest)
    return Artifact(folder, manifest, *read_schema(folder))


def verify_files(folder: Path, files: Mapping[str, str]) -> None:
    """Check files against their sha256.

    Raises:
        UserError: for a file that is missing, damaged, a link, or outside the folder.
    """
    for name, digest in files.items():
        file = folder / _checked_name(folder / MANIFEST, name)
        if file.is_symlink() or not file.is_file():
            raise UserError(f"{file}: missing, or no plain file; {MANIFEST} lists it; {WRITE_ANEW}")
        if hash_file(file) != digest:
            raise UserError(f"{file}: damaged: its sha256 is not that in {MANIFEST}; {WRITE_ANEW}")


def read_manifest(folder: Path, no_manifest: str, *, remedy: str) -> dict[str, Any]:
    """Read `manifest.json`; `verify_files` checks the files that it names against their hashes.

    Args:
        no_manifest: how the message calls a folder without a manifest.
        remedy: the remedy if it is of another version.

    Raises:
        UserError: if it is missing or damaged, or of another version.
    """
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: {no_manifest}")
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        version, _, files = (manifest[k] for k in ("format_version", "version", "files"))
    except _UNREADABLE as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{folder / MANIFEST}: cannot be read: {why}; {WRITE_ANEW}") from error
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder}: format version {version}; this is for version {FORMAT_VERSION}: {remedy}"
        )
    if not isinstance(files, dict):
        raise UserError(f"{folder / MANIFEST}: damaged: its files are no mapping; {remedy}")
    return manifest


def check_own_hash(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check a manifest against its own hash, which manifests of earlier versions do not have.

    Raises:
        UserError: if it was changed.
    """
    if OWN_HASH in manifest and manifest[OWN_HASH] != _hash_said(manifest):
        raise UserError(f"{folder / MANIFEST}: damaged: is not what was written; {WRITE_ANEW}")


def _hash_said(manifest: Mapping[str, Any]) -> str:
    return hash_json({key: value for key, value in manifest.items() if key != OWN_HASH})


def _checked_name(named_by: Path, name: str) -> str:
    """Return the name of a file if it is in the folder of the file that names it.

    Raises:
        UserError: for a path to another folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name:
        raise UserError(f"{named_by}: {name!r} does not lie in the folder")
    return name


def graph_file(graph: str, format_: str) -> str:
    """Return the name of a graph's file in a format."""
    return f"{graph}{SUFFIXES[format_]}"


def weights_file(graph: str) -> str:
    """Return the name of the file beside machine code that holds the weights of a graph."""
    return f"{graph}.aoti.safetensors"


def require_graph(artifact: Artifact, name: str) -> GraphSpec:
    """Return a graph of the artifact.

    Raises:
        DataError: if it has none of this name.
    """
    for graph in artifact.graphs:
        if graph.name == name:
            return graph
    names = ", ".join(graph.name for graph in artifact.graphs)
    raise DataError(f"{artifact.path}: has no graph {name!r}; there are {names}")
