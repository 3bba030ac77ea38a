"""Chooses the device of this process, and sets its threads, its precision and its seeds."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

from runner.config.settings import TrainerSettings
from runner.distributed.process_group import join_process_group
from runner.distributed.ranks import Ranks, current_ranks
from runner.errors import ConfigError
from runner.machine.cores import usable_cores
from runner.machine.imports import end_imports, quiet_fx
from runner.machine.memory import keep_freed_memory
from runner.training.update.determinism import set_deterministic


def join_ranks(trainer: TrainerSettings) -> Ranks:
    """Join the ranks that were started together with this process.

    Collective.
    """
    return join_process_group(select_device(trainer), timeout_s=trainer.rank_timeout_s)


def prepare_device(trainer: TrainerSettings) -> torch.device:
    """Choose the device, and set what is global to the process: threads, precision, kernels.

    Raises:
        ConfigError: for a device or a precision that this machine does not have.
    """
    quiet_fx()
    device = select_device(trainer)
    kind = device.type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device=cuda: no CUDA device is visible; use trainer.device=cpu")
    if trainer.amp and trainer.amp_dtype == "fp16" and kind != "cuda":
        raise ConfigError("trainer.amp_dtype=fp16 needs CUDA; on CPU use trainer.amp_dtype=bf16")
    per_rank = max(1, usable_cores() // current_ranks().local_world_size)
    keep_freed_memory()
    end_imports()
    torch.set_num_threads(trainer.num_threads or per_rank)
    torch.set_float32_matmul_precision("high" if trainer.tf32 else "highest")
    set_deterministic(trainer.deterministic)
    if kind == "cuda":
        torch.cuda.set_device(device)
    return device


def select_device(trainer: TrainerSettings) -> torch.device:
    """Return the device that the settings choose for this process.

    Raises:
        ConfigError: if its machine has fewer GPUs than ranks.
    """
    kind = trainer.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind != "cuda":
        return torch.device(kind)
    if "RANK" not in os.environ:
        return torch.device("cuda", 0)  # torch.cuda.set_device requires a number
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"trainer.num_processes: this machine shows {torch.cuda.device_count()} GPUs, and each "
            "rank needs one of its own; trainer.device=cpu takes none"
        )
    return torch.device("cuda", local_rank)


def seed_everything(seed: int) -> None:
    """Seed the generators that initial weights, dropout and custom tasks draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy takes 32 bits
