"""This machine: cores and threads, how memory is kept, and how much of it is left."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

# OpenMP's threads spin this often between two pieces of work before they sleep. Measured on two
# cores, rows/s of a DLRM-like step while others computed on both: 300 gave 34k, 0 (sleep at once)
# 32k, 1,000 27k, 3,000 18k, 10,000 15k, OpenMP's default 10k, which is best when all is quiet.
OPENMP_SPIN_COUNT = "300"


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: its affinity, and a container's share if that is less."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):  # no such limit, or an older kernel's layout
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def set_thread_environment(
    num_threads: int | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """What OpenMP reads once, when torch is imported. What the user has set stays."""
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPIN_COUNT)
    environment.setdefault("OMP_NUM_THREADS", str(num_threads or usable_cores()))


MAX_RETAINED_BYTES = 1 << 30  # of freed memory at most, at the top of the heap
# mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# madvise(2)
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_SIZES = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next update, where the C library is glibc; returns whether it is.

    By default glibc hands large blocks back to the kernel as soon as they are freed, and the next
    update gets them again page by page, zeroed: 5,000 page faults an update of 4,096 rows, a tenth
    of its time, and a quarter at 16,384 rows. The peak of memory stays what it was. Arrow's own
    allocator does the same, so Arrow takes its memory from the C library too: a window of rows is
    read in two thirds of the time.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    kept = mallopt(_M_MMAP_THRESHOLD, MAX_RETAINED_BYTES) and mallopt(
        _M_TRIM_THRESHOLD, MAX_RETAINED_BYTES
    )
    if kept:
        import pyarrow as pa  # late: whoever asks for cores needs no Arrow

        pa.set_memory_pool(pa.system_memory_pool())
    return bool(kept)


def use_huge_pages(address: int, num_bytes: int) -> int:
    """Asks for huge pages (2 MB on x86) for a block of memory; its content stays.

    A table of a gigabyte has 250,000 pages of 4 KB, of which the processor remembers two or three
    thousand: nearly every look-up of a random row then walks the page table before it reads. Linux
    gives huge pages to those who ask (its default, `madvise`), or to all, or to nobody.
    Returns: bytes the advice was taken for; 0 where there is no such advice, or no whole page.
    """
    if sys.platform != "linux" or not _SIZES.is_file():
        return 0
    size = int(_SIZES.read_text())
    start, stop = -(-address // size) * size, (address + num_bytes) // size * size
    if start >= stop:
        return 0
    libc = ctypes.CDLL(None)
    block = ctypes.c_void_p(start), ctypes.c_size_t(stop - start)
    if libc.madvise(*block, _MADV_HUGEPAGE) != 0:
        return 0
    # pages that were written to are put together now (Linux 6.1), else by the system in its time
    libc.madvise(*block, _MADV_COLLAPSE)
    return stop - start


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had, of the host or a GPU."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )


def available_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Of the host's memory: what is free, or a container's share of it; infinity if not known."""
    try:
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        left = float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):  # no Linux
        left = float("inf")
    try:
        limit = float((cgroup / "memory.max").read_text())
        return min(left, limit - float((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):  # no limit ("max"), or none of this kind
        return left
