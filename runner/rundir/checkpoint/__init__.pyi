from .checkpointer import Checkpointer
from .folder import find_latest, open_checkpoint, saved_steps
from .manifest import Checkpoint, CheckpointError, DamagedError
from .tensors import check_tensors, load_tensors, read_tensors, tensor_shapes

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
