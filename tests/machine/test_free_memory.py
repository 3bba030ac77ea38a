"""The free memory of the host, and what says that there is none: kills and errors."""

from __future__ import annotations

import math

import pytest
import torch

from runner.machine.free_memory import (
    available_memory_bytes,
    available_memory_share,
    count_oom_kills,
    is_out_of_memory,
)

MEMINFO = "MemTotal:       24000000 kB\nMemAvailable:    1000 kB\n"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def write_group(folder, limit, used, files, *, is_v1=False):
    """Write what a control group says: its limit, its memory, and the pages of files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("limit_in_bytes", "usage_in_bytes") if is_v1 else ("max", "current")
    for name, value in zip(names, (limit, used)):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    prefix = "total_" if is_v1 else ""
    stat = f"anon 7\n{prefix}inactive_file {files}\n{prefix}active_file 1\n"
    (folder / "memory.stat").write_text(stat)


def test_it_is_the_free_memory_of_the_host(proc):
    assert available_memory_bytes(proc, proc / "nothing") == 1_024_000
    assert available_memory_bytes(proc / "nothing", proc) == math.inf
    (proc / "self" / "cgroup").write_text("0::/\n")
    write_group(proc, "max", 600, 0)
    assert available_memory_bytes(proc, proc) == 1_024_000
    assert 0 < available_memory_bytes() < math.inf  # this machine's


def test_it_is_a_groups_share_whose_pages_of_files_can_go(proc):
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    write_group(proc, 1000, 600, 99)  # a container sees its own group as the root
    assert available_memory_bytes(proc, proc) == 500
    write_group(proc / "pod", 2000, 700, 99)
    assert available_memory_bytes(proc, proc) == 500  # the least of all above
    write_group(proc / "pod" / "box", 400, 300, 0)
    assert available_memory_bytes(proc, proc) == 101


def test_it_is_a_share_in_groups_of_version_1(proc):
    (proc / "self" / "cgroup").write_text("9:pids:/\n4:memory:/docker/12ab\n0::/\n")
    write_group(proc / "memory", 1000, 600, 49, is_v1=True)
    assert available_memory_bytes(proc, proc) == 450


def test_the_free_share_is_the_smallest_of_the_host_and_all_groups(proc):
    assert available_memory_share(proc / "nothing", proc) == math.inf
    (proc / "meminfo").write_text(MEMINFO.replace(" 1000 kB", " 6000000 kB"))
    assert available_memory_share(proc, proc / "nothing") == 0.25
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    write_group(proc / "pod" / "box", 1000, 900, 49)  # with one page of files more: 150 are free
    assert available_memory_share(proc, proc) == 0.15
    write_group(proc / "pod", 2000, 1900, 99)  # 200 are free: less of its limit
    assert available_memory_share(proc, proc) == 0.1
    write_group(proc / "pod", "max", 1900, 99)
    assert available_memory_share(proc, proc) == 0.15
    write_group(proc / "pod" / "box", 0, 0, 0)  # a limit of 0 has no share
    assert available_memory_share(proc, proc) == 0.25


def test_the_free_share_is_known_in_groups_of_version_1(proc):
    (proc / "meminfo").write_text(MEMINFO.replace(" 1000 kB", " 6000000 kB"))
    (proc / "self" / "cgroup").write_text("4:memory:/docker/12ab\n")
    write_group(proc / "memory", 1000, 900, 99, is_v1=True)
    assert available_memory_share(proc, proc) == 0.2


def test_kills_for_lack_of_memory_are_those_of_the_own_group_or_else_of_the_machine(proc):
    assert count_oom_kills(proc, proc) is None
    (proc / "vmstat").write_text("pgfault 12\noom_kill 7\noom_kill_other 1\n")
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    assert count_oom_kills(proc, proc) == 7  # the kernel's root group counts none
    (proc / "memory.events.local").write_text("oom 9\noom_kill 4\n")
    assert count_oom_kills(proc, proc) == 4  # a container sees its own group as the root
    (proc / "pod" / "box").mkdir(parents=True)
    (proc / "pod" / "box" / "memory.events.local").write_text("oom 3\noom_kill 2\n")
    assert count_oom_kills(proc, proc) == 2
    (proc / "self" / "cgroup").write_text("9:pids:/\n4:memory:/docker/12ab\n0::/\n")
    (proc / "memory").mkdir()
    (proc / "memory" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    assert count_oom_kills(proc, proc) == 1


def test_torchs_out_of_memory_error_is_known_and_others_are_not():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
