"""How much memory there is still to be had, and whether that was what failed."""

from __future__ import annotations

from pathlib import Path


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
