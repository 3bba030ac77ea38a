"""A delta: what changed in a model since a version of it, as a folder beside whole artifacts.

docs/export.md describes the format. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner.errors import UserError
from runner.serving.artifact import (
    FORMAT_VERSION,
    MANIFEST,
    SCHEMA,
    Artifact,
    hash_values,
    read_schema,
    verify_files,
)
from runner.serving.loaded_graph import read_weights

KIND = "delta"
WEIGHTS = "delta.safetensors"
PREFIX = "delta-"  # of the folders of deltas in a folder of deliveries
ROWS = "/rows"  # behind the name of a table, whose changed rows have these numbers
# facts of a whole artifact that become those of the delta
CARRIED = ("checkpoint", "run", "versions")


@dataclass(frozen=True)
class Delta:
    """A delta whose files are those of its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def base(self) -> str:
        """The version that it changes."""
        return str(self.manifest["base"]["version"])

    @property
    def version(self) -> str:
        """The version that it makes of it: the hash of all that its manifest says."""
        return str(self.manifest["version"])

    @property
    def step(self) -> int:
        """The update whose weights it brings."""
        return int(self.manifest["checkpoint"]["step"])

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """`<graph>/<weight>`: whole, or the changed rows that `.../rows` lists."""
        return read_weights(self.path / WEIGHTS)

    def check_base(self, artifact: Artifact) -> None:
        """Check that this delta is one on the artifact's version.

        Raises:
            UserError: naming both versions.
        """
        if self.base != artifact.version:
            base_step, step = self.manifest["base"]["step"], artifact.step
            raise UserError(
                f"{self.path}: is a delta on version {self.base} (step {base_step}), and not on "
                f"version {artifact.version} (step {step}) of {artifact.path}"
            )

    def new_weights(
        self, graph: str, weight: Callable[[str], np.ndarray | None]
    ) -> dict[str, np.ndarray]:
        """Return the weights of a graph that this delta changes, whole.

        Args:
            graph: its name.
            weight: gives a weight of the base by name; None if the format has no use for it.

        Raises:
            UserError: for weights that do not fit those of the base.
        """
        changed = {}
        for key, values in self.weights.items():
            owner, _, name = key.partition("/")
            if owner != graph or key.endswith(ROWS) or (old := weight(name)) is None:
                continue
            rows = self.weights.get(key + ROWS)
            resized = self.manifest["resized"].get(key)
            if rows is None and resized is None:
                new = np.array(values)
                fits = old.shape == values.shape
            else:
                new = np.array(old) if resized is None else _resized(old, resized)
                rows = np.zeros(0, np.int32) if rows is None else rows
                fits = old.shape[1:] == values.shape[1:] and rows.shape == values.shape[:1]
                fits = fits and (not len(rows) or int(rows.max()) < len(new))
                if fits:
                    new[rows] = values
            if not fits or old.dtype != values.dtype:
                raise UserError(f"{self.path / WEIGHTS}: {key} does not fit the base's weight")
            changed[name] = new
        return changed

    def applied_to(self, artifact: Artifact) -> Artifact:
        """Return the artifact with what its manifest and its transforms say after this delta."""
        facts = {name: self.manifest[name] for name in (*CARRIED, "version")}
        manifest = {**artifact.manifest, **facts}
        if SCHEMA not in self.manifest["files"]:
            return replace(artifact, manifest=manifest)
        graphs, tasks, raw = read_schema(self.path)
        return replace(artifact, manifest=manifest, graphs=graphs, tasks=tasks, raw=raw)


def _resized(old: np.ndarray, resized: Mapping[str, Any]) -> np.ndarray:
    """Return stacked tables at their new sizes; rows that are new are not set yet.

    Args:
        old: [R, D].
        resized: the first rows of the tables and the number of all rows, before and after.
    """
    new = np.zeros((resized["rows"], *old.shape[1:]), old.dtype)
    before = [*resized["base_starts"], resized["base_rows"]]
    after = [*resized["starts"], resized["rows"]]
    for k in range(len(before) - 1):
        kept = min(before[k + 1] - before[k], after[k + 1] - after[k])
        new[after[k] : after[k] + kept] = old[before[k] : before[k] + kept]
    return new


def open_delta(path: Path | str) -> Delta:
    """Open a delta after every file was held against its manifest.

    Raises:
        UserError: for a folder that is no delta, is damaged, or is of a later version.
    """
    folder = Path(path)
    delta = Delta(folder, _read_manifest(folder))
    verify_files(folder, delta.manifest["files"])
    return delta


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: no delta; `export DIR --since MODEL --out DELTA` writes one")
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        kind, format_version = manifest.get("kind"), manifest["format_version"]
        named = {k: v for k, v in manifest.items() if k != "version"}
        is_whole = kind != KIND or hash_values(named) == manifest["version"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / MANIFEST}: cannot be read: {error!r}") from error
    if kind != KIND:
        raise UserError(f"{folder}: is a whole artifact, and no delta")
    if format_version != FORMAT_VERSION:
        raise UserError(
            f"{folder}: format version {format_version}; this is for version {FORMAT_VERSION}: "
            "write it again"
        )
    if not is_whole:
        raise UserError(f"{folder / MANIFEST}: damaged: its version is not the hash of the rest")
    return manifest


class Versioned(Protocol):
    """What a delta can be for: a `Scorer`."""

    @property
    def version(self) -> str:
        """The version that is served."""


def next_delta(scorer: Versioned, folder: Path | str) -> Path | None:
    """Return the delta in a folder whose base is what a scorer serves; None: there is none yet.

    Args:
        scorer: its version is the base that is looked for.
        folder: of deliveries; other folders in it are passed over, and so is a delta that is
            being written.

    Raises:
        UserError: for a delta whose manifest is damaged, and a folder that cannot be read.
    """
    return find_delta(scorer.version, folder)


def find_delta(base: str, folder: Path | str) -> Path | None:
    """Return the delta in a folder on a version, as `next_delta` does.

    Raises:
        UserError: as `next_delta`.
    """
    try:
        found = sorted(Path(folder).glob(f"{PREFIX}*"), reverse=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror or error}") from error
    for path in found:
        if _read_manifest(path)["base"]["version"] == base:
            return path
    return None
