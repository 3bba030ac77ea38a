"""The devices that a test is to hold on: the CPU, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# why a test is skipped; `-m "not gpu"` leaves it out altogether
ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)
DEVICES = [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=ON_GPU)]


def tolerance(device: torch.device, on_cpu: float, on_gpu: float) -> float:
    """A GPU adds up in another order, and its powers and roots differ in the last bits."""
    return on_cpu if device.type == "cpu" else on_gpu
