"""A delta: a folder with the changes of a model since an earlier version of it.

docs/export.md describes the format. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner.data.prepare.recipe import hash_json
from runner.errors import UserError
from runner.rundir.regular_files import file_state
from runner.serving.artifact.folder import (
    EXPORT_WHOLE,
    MANIFEST,
    SCHEMA,
    WRITE_ANEW,
    Artifact,
    GraphSpec,
    read_manifest,
    read_schema,
    verify_files,
)
from runner.serving.artifact.loaded_graph import read_weights

KIND = "delta"
NO_DELTA = "no delta; `python -m runner export DIR --since MODEL --out DELTA` writes one"
WEIGHTS = "delta.safetensors"
PREFIX = "delta-"  # of the names of deltas in a folder of deliveries
# appended to the name of a table: the numbers of its changed and new rows; of its deleted rows, in
# the base; and of its new rows
ROWS, DELETED, INSERTED = "/rows", "/deleted", "/inserted"
# facts of a whole artifact that become those of the delta
CARRIED = ("checkpoint", "run", "versions")


@dataclass(frozen=True)
class Delta:
    """A delta whose files have been checked against its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def base(self) -> str:
        """The version that the delta applies to."""
        return str(self.manifest["base"]["version"])

    @property
    def version(self) -> str:
        """The version after the delta: the hash of the content of its manifest."""
        return str(self.manifest["version"])

    @property
    def step(self) -> int:
        """The update after which its weights were saved."""
        return int(self.manifest["checkpoint"]["step"])

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """`<graph>/<weight>`: whole, or the rows that `.../rows` lists."""
        return read_weights(self.path / WEIGHTS)

    def check_base(self, artifact: Artifact) -> None:
        """Check that the artifact has the version that this delta applies to.

        Raises:
            UserError: naming both versions.
        """
        if self.base != artifact.version:
            base_step, step = self.manifest["base"]["step"], artifact.step
            raise UserError(
                f"{self.path}: is a delta on version {self.base} (step {base_step}), and not on "
                f"version {artifact.version} (step {step}) of {artifact.path}; deltas are "
                "applied in the order in which they were written"
            )

    def new_weights(
        self, graph: str, weight: Callable[[str], np.ndarray | None]
    ) -> dict[str, np.ndarray]:
        """Return the whole new values of the weights of a graph that this delta changes.

        Args:
            weight: gives a weight of the base by name; None if the format has no use for it.

        Raises:
            UserError: for weights that do not fit those of the base.
        """
        changed = {}
        for key, values in self.weights.items():
            owner, _, name = key.partition("/")
            if owner != graph or "/" in name or (old := weight(name)) is None:
                continue
            try:
                changed[name] = self._new_weight(key, np.asarray(old), values)
            except (ValueError, IndexError) as error:
                problem = f"{self.path / WEIGHTS}: {key} does not fit the base's weight"
                raise UserError(f"{problem}: {error}") from error
            first = f"{name.rpartition('.rows.')[0]}.first_F"
            if self.manifest["moved"].get(key, {}).get("starts_changed") and weight(first) is None:
                raise UserError(
                    f"{self.path}: tables of {key} begin elsewhere than in the base, which an ONNX "
                    f"graph cannot follow: {EXPORT_WHOLE}, or serve pt2 or aoti"
                )
        return changed

    def changed_weights(
        self, graphs: Sequence[GraphSpec], weights: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return `new_weights` of several graphs; the names of weights are `<graph>/<weight>`."""
        changed: dict[str, np.ndarray] = {}
        for spec in graphs:
            prefix = f"{spec.name}/"
            tensors = {
                k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)
            }
            new = self.new_weights(spec.name, tensors.get)
            changed |= {f"{prefix}{name}": values for name, values in new.items()}
        return changed

    def _new_weight(self, key: str, old: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the new values of a weight of the base.

        Raises:
            ValueError: for values that do not fit the weight of the base; or IndexError.
        """
        rows = self.weights.get(key + ROWS)
        if rows is None:
            if (old.shape, old.dtype) != (values.shape, values.dtype):
                raise ValueError(f"{old.dtype} {old.shape} and {values.dtype} {values.shape}")
            return np.array(values)
        if (old.shape[1:], old.dtype) != (values.shape[1:], values.dtype):
            raise ValueError(f"rows of {old.dtype} {old.shape[1:]} and {values.dtype}")
        none = np.zeros(0, np.int64)
        deleted, inserted = (self.weights.get(key + end, none) for end in (DELETED, INSERTED))
        new = move_rows(old, deleted, inserted)
        new[rows] = values
        return new

    def applied_to(self, artifact: Artifact) -> Artifact:
        """Return the artifact with its manifest, graphs and transforms after this delta."""
        facts = {name: self.manifest[name] for name in (*CARRIED, "version")}
        manifest = {**artifact.manifest, **facts}
        if SCHEMA not in self.manifest["files"]:
            return replace(artifact, manifest=manifest)
        graphs, tasks, raw = read_schema(self.path)
        return replace(artifact, manifest=manifest, graphs=graphs, tasks=tasks, raw=raw)


def move_rows(old_RD: np.ndarray, deleted: np.ndarray, inserted: np.ndarray) -> np.ndarray:
    """Return a copy of stacked tables without the deleted rows, and with zeros for new rows.

    Args:
        deleted: numbers of the deleted rows, in the base.
        inserted: numbers of the new rows, in the result. The others keep their order.
    """
    new_RD = np.zeros((len(old_RD) - len(deleted) + len(inserted), *old_RD.shape[1:]), old_RD.dtype)
    is_kept_R = np.ones(len(new_RD), bool)
    is_kept_R[inserted] = False
    new_RD[is_kept_R] = np.delete(old_RD, deleted, axis=0) if len(deleted) else old_RD
    return new_RD


def open_delta(path: Path | str) -> Delta:
    """Open a delta after checking every file against its manifest.

    Raises:
        UserError: for a folder that is no delta, is damaged, or is of a later version.
    """
    folder = Path(path)
    delta = Delta(folder, _read_manifest(folder))
    verify_files(folder, delta.manifest["files"])
    return delta


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder, NO_DELTA, remedy="write it again")
    if manifest.get("kind") != KIND:
        raise UserError(f"{folder}: is a whole artifact, and {NO_DELTA}")
    hashed = {k: v for k, v in manifest.items() if k != "version"}
    if hash_json(hashed) != manifest.get("version"):
        raise UserError(
            f"{folder / MANIFEST}: damaged: its version is not the hash of the rest; {WRITE_ANEW}"
        )
    return manifest


class Versioned(Protocol):
    """An object that deltas can be applied to, such as a `Scorer`."""

    @property
    def version(self) -> str:
        """The version that is served."""


def next_delta(scorer: Versioned, folder: Path | str) -> Path | None:
    """Return the delta in a folder that applies to a scorer's version; None if there is none yet.

    Args:
        scorer: the delta applies to its version.
        folder: of deliveries; folders not called `delta-*` are passed over, and so is one that is
            being written.

    Raises:
        UserError: for a delta whose manifest is damaged, and a folder that cannot be read.
    """
    return DeltaFolder(folder).take(scorer.version)


class DeltaFolder:
    """The deltas of a folder, taken one after another."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # version -> the delta on it, and the step of the version
        self._on: dict[str, tuple[Path, int]] = {}
        self._base_of: dict[str, str] = {}  # version -> the one that its delta is on

    def take(self, base: str) -> Path | None:
        """Return the delta that applies to a version, the last by name if there are several.

        The folder is listed if no such delta is known. A delta is returned once per listing.

        Raises:
            UserError: as `next_delta`, unless there is another delta for the version.
        """
        if base not in self._on and (problem := self._look()) and base not in self._on:
            raise problem
        return self._on.pop(base, (None, 0))[0]

    def find_waiting(self, version: str, step: int) -> tuple[Path, int] | None:
        """Return the first delta with a base of this step or a later one, and the step of its base.

        It waits for deltas that are missing, since none applies to the present version. Deltas that
        led to the present version do not wait, though steps begin anew with each run that delivers.

        Args:
            version: for which `take` has found no delta.
            step: of that version.
        """
        passed = set()
        while (base := self._base_of.get(version)) is not None and base not in passed:
            passed.add(base)
            version = base
        known = [
            (at, path)
            for base, (path, at) in self._on.items()
            if at >= step and base not in passed and path.exists()
        ]
        return min(known)[::-1] if known else None

    def _look(self) -> UserError | None:
        """List all deltas; return the error of the last damaged one, or None."""
        problem = None
        try:
            folders = sorted(self.path.glob(f"{PREFIX}*"))
        except OSError as error:
            return UserError(f"{self.path}: cannot be read: {error.strerror or error}")
        for path in folders:
            try:
                version, base, step = _read_versions(path, file_state(path / MANIFEST))
                self._on[base] = path, step
                self._base_of[version] = base
            except UserError as error:
                problem = error
        return problem


@lru_cache(maxsize=1 << 16)
def _read_versions(path: Path, state: object) -> tuple[str, str, int]:
    """Return the version of a delta, that of its base, and the step of the base (-1 if unknown).

    A manifest is read once per state of its file.
    """
    manifest = _read_manifest(path)
    base, step = manifest["base"], manifest["base"].get("step")
    return str(manifest["version"]), str(base["version"]), step if isinstance(step, int) else -1
