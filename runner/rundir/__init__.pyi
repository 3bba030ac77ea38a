from .checkpoint.checkpointer import Checkpointer
from .checkpoint.manifest import Checkpoint, CheckpointError, DamagedError
from .run import Run, RunSpec
from .run_files import read_config, read_meta, read_result

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "DamagedError",
    "Run",
    "RunSpec",
    "read_config",
    "read_meta",
    "read_result",
]
