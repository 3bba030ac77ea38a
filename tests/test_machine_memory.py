"""Freed memory stays with the process, and large tables move to huge pages with their values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.huge_pages import MIN_HUGE_PAGE_BYTES, advise_huge_pages
from runner.machine import use_huge_pages

CODE = """
import resource, sys
import torch
from runner.machine import keep_freed_memory
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


def test_arrow_takes_its_memory_from_the_same_place():
    code = "import pyarrow as pa; from runner.machine import keep_freed_memory as k; " + (
        "print(k(), pa.default_memory_pool().backend_name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.startswith("False"):
        pytest.skip("not glibc")
    assert done.stdout == "True system\n"


def in_huge_pages(tensor: torch.Tensor) -> int:
    """Return the bytes of huge pages in the memory blocks of a tensor, as the system reports."""
    start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(n, 16) for n in first.split("-"))
            inside = low < stop and start < high
        elif inside and first == "AnonHugePages:":
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
def test_a_table_is_put_in_huge_pages_as_it_is():
    table = torch.randn(1 << 20, 16, generator=torch.Generator().manual_seed(0))
    before = table.clone()
    asked = use_huge_pages(table.data_ptr(), table.nbytes)
    if not asked:
        pytest.skip("this system has no huge pages")
    assert table.nbytes - asked < 2 * 2**21  # all but what lies outside of whole pages
    assert torch.equal(table, before)
    if in_huge_pages(table) == 0:
        pytest.skip("this system gives huge pages to nobody, or cannot put them together")
    assert in_huge_pages(table) >= asked // 2


def test_only_blocks_that_are_worth_it_are_moved_and_each_of_them_once():
    stored = torch.zeros(1 << 22)  # 16 MB
    half = 1 << 21
    here = [LocalShard(stored[half:], (0,))]
    views = [stored[:half], LocalShards((half,), here, stored.dtype, stored.device)]
    assert stored.nbytes < MIN_HUGE_PAGE_BYTES and advise_huge_pages(views) == 0
    asked = advise_huge_pages(views, min_bytes=stored.nbytes)
    assert asked == use_huge_pages(stored.data_ptr(), stored.nbytes)
    assert advise_huge_pages([torch.zeros(8)], min_bytes=0) == 0  # not one whole page
