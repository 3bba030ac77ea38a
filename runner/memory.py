"""How this process deals with memory that it freed."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

KEPT_BYTES = 1 << 30  # of freed memory at most, at the top of the heap
# mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next update, where the C library is glibc; returns whether it is.

    By default glibc hands large blocks back to the kernel as soon as they are freed, and the next
    update gets them again page by page, zeroed: 5,000 page faults an update of 4,096 rows, a tenth
    of its time, and a quarter at 16,384 rows. The peak of memory stays what it was.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)) and bool(
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had, of the host or a GPU."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Of the host's memory: what is free, or a container's share of it; infinity if not known."""
    left = float("inf")
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
