"""Checkpoints: written whole or not at all, verified before they are believed, and never pickled.

checkpoints/step-N/          a checkpoint, named by one rename when all of it is on the disk
    shard-00001.safetensors  tensors of rank 0, with their place in the whole in the header
    state.json               everything that is not a tensor
    manifest.json            size and sha256 of the others, written last
checkpoints/.tmp-*           a save or a removal that has not ended; swept away at the next start
checkpoints/.old-step-N      the one that a second save of step N is replacing

What reads no tensors (`folder`, `manifest`, `peek`) imports no torch, so the names below that do
are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runner.rundir.checkpoint.folder import find_latest, open_checkpoint, saved_steps
from runner.rundir.checkpoint.manifest import Checkpoint, CheckpointError, DamagedError

if TYPE_CHECKING:
    from runner.rundir.checkpoint.checkpointer import Checkpointer
    from runner.rundir.checkpoint.tensors import load_tensors, read_tensors, tensor_shapes

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "DamagedError",
    "find_latest",
    "load_tensors",
    "open_checkpoint",
    "read_tensors",
    "saved_steps",
    "tensor_shapes",
]
_LATE = {"Checkpointer": "checkpointer"} | dict.fromkeys(
    ("load_tensors", "read_tensors", "tensor_shapes"), "tensors"
)


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
