"""Which device a process takes, and that it is one that torch's own functions accept."""

from __future__ import annotations

import pytest
import torch

from runner.config.settings import TrainerSettings
from runner.errors import ConfigError
from runner.training.builder import device as device_module
from runner.training.builder.device import prepare_device, select_device


@pytest.fixture
def two_gpus(monkeypatch):
    """Pretends two GPUs to torch's Python; yields the device numbers that CUDA was given."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    monkeypatch.setattr(device_module, "keep_freed_memory", lambda: None)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    precision = torch.get_float32_matmul_precision()
    yield chosen
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize(("asked", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_one_process_takes_a_gpu_by_its_number(two_gpus, asked, number):
    """torch.cuda.set_device refuses `cuda` without one."""
    assert prepare_device(TrainerSettings(device=asked)) == torch.device("cuda", number)
    assert two_gpus == [number]


def test_a_rank_takes_the_gpu_of_its_place_on_the_machine(two_gpus, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert prepare_device(TrainerSettings(device="auto")) == torch.device("cuda", 1)
    assert two_gpus == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="shows 2 GPUs, and each rank needs one of its own"):
        select_device(TrainerSettings(device="cuda"))
    assert select_device(TrainerSettings(device="cpu")) == torch.device("cpu")


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_device(TrainerSettings(device="auto")) == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device is visible"):
        prepare_device(TrainerSettings(device="cuda"))
    with pytest.raises(ConfigError, match=r"fp16 needs CUDA; on CPU use trainer.amp_dtype=bf16"):
        prepare_device(TrainerSettings(device="cpu", amp=True, amp_dtype="fp16"))
