"""Reads a checkpoint's values and names without its tensors, for checks before torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.checkpoint.files import parse_json
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST_FILE, TENSORS_SUFFIX, VALUES_FILE
from runner.rundir.regular_files import MAX_JSON_BYTES, open_regular, read_bytes


@dataclass(frozen=True)
class CheckpointSummary:
    """The values of a checkpoint and the names of its tensors, without a check of its sha256."""

    path: Path
    values: Mapping[str, Any]
    tensor_names: frozenset[str]


def peek_checkpoint(path: Path, step: str = "best") -> CheckpointSummary | None:
    """Summarise a checkpoint.

    Args:
        path: a checkpoint's own folder, or a run directory.
        step: `best` or `last`, for a run directory.

    Returns:
        None if none can be read. The reason is reported when the tensors are read.
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
        with open(open_regular(file), "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(os.fstat(opened.fileno()).st_size, MAX_JSON_BYTES):
                raise ValueError(f"{file}: not a safetensors file")
            names |= json.loads(opened.read(length)).keys() - {"__metadata__"}
    return CheckpointSummary(folder, parse_json(read_bytes(folder / VALUES_FILE)), frozenset(names))
