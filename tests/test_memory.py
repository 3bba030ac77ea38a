"""Freed memory stays with the process: no page faults for what the last update had already."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
import torch
from runner.memory import keep_freed_memory
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


def test_an_update_gets_the_memory_of_the_last_one_without_page_faults():
    assert page_faults("keep") < page_faults("default") / 10


def test_arrow_takes_its_memory_from_the_same_place():
    code = "import pyarrow as pa; from runner.memory import keep_freed_memory as k; " + (
        "print(k(), pa.default_memory_pool().backend_name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.startswith("False"):
        pytest.skip("not glibc")
    assert done.stdout == "True system\n"
