"""Small checkpoints for the tests."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from runner.rundir.checkpoint import Checkpointer


def make_checkpointer(folder: Path, keep: int = 2) -> Checkpointer:
    return Checkpointer(folder, keep=keep, warn=fail_on_warning)


def fail_on_warning(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def save(folder: Path, step: int, tensors: dict[str, Tensor] | None = None, **values) -> Path:
    tensors = {"w": torch.full((4, 3), float(step))} if tensors is None else tensors
    make_checkpointer(folder, keep=99).save(step, tensors, values, wait=True)
    return folder / f"step-{step}"
