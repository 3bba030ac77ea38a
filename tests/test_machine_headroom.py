"""The free memory of the host, and errors that say that there is none."""

from __future__ import annotations

import math

import pytest
import torch

from runner.machine import available_memory_bytes, is_out_of_memory

MEMINFO = "MemTotal:       24000000 kB\nMemAvailable:    1000 kB\n"


def test_it_is_the_free_memory_or_a_containers_share_of_it(tmp_path):
    meminfo, nothing = tmp_path / "meminfo", tmp_path / "nothing"
    meminfo.write_text(MEMINFO)
    assert available_memory_bytes(meminfo, nothing) == 1_024_000
    assert available_memory_bytes(nothing, nothing) == math.inf
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(meminfo, tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_memory_bytes(meminfo, tmp_path) == 400
    assert 0 < available_memory_bytes() < math.inf  # this machine's


def test_torchs_out_of_memory_error_is_known_and_others_are_not():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
