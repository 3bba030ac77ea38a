"""Freed memory stays with the process, and large tables lie in huge pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner.embeddings.huge_pages import MIN_HUGE_PAGE_BYTES, ZerosFrom, zeros_in_huge_pages

HUGE_PAGE_SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
CODE = """
import resource, sys
import torch
from runner.machine.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
def update():
    return torch.ones(16_000_000).sum()  # 64 MB, freed at once
for _ in range(20):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("not glibc")
    return int(done.stdout)


@pytest.mark.long
def test_an_update_gets_the_memory_of_the_last_one_without_page_faults():
    assert page_faults("keep") < page_faults("default") / 10


def test_freed_blocks_between_kept_ones_are_handed_back():
    code = """
import ctypes, sys
from pathlib import Path
from runner.machine.memory import keep_freed_memory, release_freed_memory
if not keep_freed_memory():
    sys.exit(3)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def resident(): return 4 * int(Path("/proc/self/statm").read_text().split()[1])
large = []
for _ in range(50):
    large.append(libc.malloc(4 << 20))
    ctypes.memset(large[-1], 1, 4 << 20)
    libc.malloc(64)
for block in large:
    libc.free(block)
kept = resident()
release_freed_memory()
print(kept - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("not glibc")
    assert int(done.stdout) > 150 << 10  # of 200 MB


def test_arrow_takes_its_memory_from_the_same_place():
    code = "import pyarrow as pa; from runner.machine.memory import keep_freed_memory as k; " + (
        "print(k(), pa.default_memory_pool().backend_name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.startswith("False"):
        pytest.skip("not glibc")
    assert done.stdout == "True system\n"


def advised_bytes(tensor: torch.Tensor) -> int | None:
    """Return the bytes of a tensor for which huge pages were asked, as the system reports.

    How many it then gives depends on how much free memory lies together. None: it does not report.
    """
    start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    found, inside, reported = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(n, 16) for n in first.split("-"))
            inside = max(0, min(high, stop) - max(low, start))
        elif first == "VmFlags:":
            reported = True
            found += inside if "hg" in rest else 0
    return found if reported else None


@pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
def test_large_zeros_ask_for_huge_pages():
    with ZerosFrom(zeros_in_huge_pages):
        table = torch.zeros(MIN_HUGE_PAGE_BYTES // 4, 1)
        small = torch.zeros(3, dtype=torch.int8)
    assert table.shape == (MIN_HUGE_PAGE_BYTES // 4, 1) and table.dtype == torch.float32
    assert not table.any() and torch.equal(small, torch.zeros(3, dtype=torch.int8))
    advised = advised_bytes(table)
    if advised is None or not HUGE_PAGE_SIZE_FILE.is_file():
        pytest.skip("this system has no huge pages, or does not say for what they were asked")
    assert advised >= table.nbytes - 2 * int(HUGE_PAGE_SIZE_FILE.read_text())
    assert advised_bytes(torch.zeros(MIN_HUGE_PAGE_BYTES // 4, 1)) == 0


def test_only_zeros_on_the_cpu_ask_for_memory():
    asked = []
    with ZerosFrom(lambda like: asked.append((tuple(like.shape), like.dtype))):
        assert torch.equal(torch.zeros((2, 3), dtype=torch.int16), torch.tensor([[0] * 3] * 2))
        torch.zeros(4, device="cpu")
        torch.zeros(5, device="meta")
        torch.ones(6)
    assert asked == [((2, 3), torch.int16), ((4,), torch.float32)]
