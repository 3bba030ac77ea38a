"""Checkpoints: written atomically, verified before they are used, and never pickled.

checkpoints/step-N/          a checkpoint, which gets its name by one rename once it is on the disk
    shard-00001.safetensors  the tensors of rank 0, with their offsets in the whole in the header
    state.json               everything that is not a tensor
    manifest.json            size and sha256 of the other files, written last
checkpoints/.tmp-*           a save or a removal that has not ended; removed at the next start
checkpoints/.old-step-N      a checkpoint that a second save of step N is replacing

The modules that read no tensors (`folder`, `manifest`, `peek`) import no torch. The names below
that need torch are therefore imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runner.rundir.checkpoint.folder import find_latest, open_checkpoint, saved_steps
from runner.rundir.checkpoint.manifest import Checkpoint, CheckpointError, DamagedError

if TYPE_CHECKING:
    from runner.rundir.checkpoint.checkpointer import Checkpointer
    from runner.rundir.checkpoint.tensors import (
        check_tensors,
        load_tensors,
        read_tensors,
        tensor_shapes,
    )

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "DamagedError",
    "check_tensors",
    "find_latest",
    "load_tensors",
    "open_checkpoint",
    "read_tensors",
    "saved_steps",
    "tensor_shapes",
]
_LATE = {"Checkpointer": "checkpointer"} | dict.fromkeys(
    ("check_tensors", "load_tensors", "read_tensors", "tensor_shapes"), "tensors"
)


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
