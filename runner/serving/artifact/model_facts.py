"""The facts of a manifest about the run and the checkpoint of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config.signature import with_drawn_negatives
from runner.data.prepare.recipe import hash_json
from runner.serving.artifact.folder import hash_file


def checkpoint_hash(checkpoint: Path) -> str:
    """Return the hash of a checkpoint: that of its manifest, which has the hashes of its files."""
    return hash_file(checkpoint / "manifest.json")


def model_facts(
    config: Mapping[str, Any],
    meta: Mapping[str, Any],
    name: str,
    step: int,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Return the facts of a model.

    Args:
        name: of the run; if empty, that in `meta`.
        checkpoint: its folder; None if there is none yet.
    """
    net = config["model"]["net"]
    digest = None if checkpoint is None else checkpoint_hash(checkpoint)
    return {
        "model": net["_target_"],
        "architecture": hash_json(with_drawn_negatives(net)),
        "run": {
            "name": name or meta.get("name"),
            "signature": meta["signature"],
            "id": meta.get("run_id"),
        },
        "checkpoint": {"step": step, "sha256": digest},
    }
