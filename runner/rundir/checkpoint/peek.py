"""What a checkpoint holds, without its tensors and without torch: for rules that come before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.checkpoint.files import parse_json
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST_FILE, TENSORS_SUFFIX, VALUES_FILE


@dataclass(frozen=True)
class CheckpointSummary:
    """Of a checkpoint that no sha256 has been taken of yet. names: of all its tensors."""

    path: Path
    values: Mapping[str, Any]
    tensor_names: frozenset[str]


def peek_checkpoint(path: Path, step: str = "best") -> CheckpointSummary | None:
    """Of a checkpoint folder itself, or of a run directory's `best` or `last` one.

    None if there is none, or none that can be read: who reads the tensors says what is wrong.
    """
    try:
        if (path / MANIFEST_FILE).exists():
            return _read_summary(path)
        steps = saved_steps(path / "checkpoints")
        if not steps:
            return None
        newest = _read_summary(path / "checkpoints" / f"step-{steps[-1]}")
        best = newest.values.get("best") if step == "best" else None
        if best is None or best["step"] == steps[-1]:
            return newest
        return _read_summary(path / "checkpoints" / f"step-{best['step']}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError):
        return None


def _read_summary(folder: Path) -> CheckpointSummary:
    names: set[str] = set()
    for file in sorted(folder.glob(f"*{TENSORS_SUFFIX}")):
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError(f"{file}: no safetensors file")
            names |= json.loads(opened.read(length)).keys() - {"__metadata__"}
    return CheckpointSummary(
        folder, parse_json((folder / VALUES_FILE).read_bytes()), frozenset(names)
    )
