"""How much memory is left, and whether it has run out."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path

from runner.machine.cores import control_groups


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that the host or a GPU has no memory left."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        # an imported library; without a limit, its file system forbids to execute files
        or ("failed to map segment" in text and bool(address_limit_hint()))
    )


def address_limit_hint() -> str:
    """Return a hint at the limit of this process's address space; "" without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"; this process may take {limit / 1e9:.1f} GB of address space (`ulimit -v`), and torch "
        "alone needs 1.5 GB, with CUDA far more; `ulimit -v unlimited` or a larger limit of the "
        "job helps"
    )


def available_memory_bytes(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the memory that this process may still allocate; infinity if unknown.

    This is the host's free memory, or a container's or control group's if that is less. Pages
    of files count as free in both, since the system drops them when memory is needed.
    """
    return min((available for available, _ in _memory_limits(proc, cgroup)), default=math.inf)


def available_memory_share(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the free share of the host's memory, or of a group's limit if that is smaller.

    Free memory is as in `available_memory_bytes`; infinity if unknown.
    """
    shares = (available / limit for available, limit in _memory_limits(proc, cgroup) if limit)
    return min(shares, default=math.inf)


def _memory_limits(proc: Path, cgroup: Path) -> Iterator[tuple[float, float]]:
    """Yield the free and the total bytes, of the host and of each group."""
    try:
        lines = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        names = ("MemAvailable", "MemTotal")
        free, total = (float(lines[name].split()[0]) * 1024 for name in names)
    except (OSError, ValueError, KeyError, IndexError):  # the system is not Linux
        return
    yield free, total
    for group, is_v1 in control_groups("memory", proc, cgroup):
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        files = files if is_v1 else ("memory.max", "memory.current")
        prefix = "total_" if is_v1 else ""
        try:
            limit, usage = (float((group / name).read_text()) for name in files)
            rows = (group / "memory.stat").read_text().splitlines()
            counters = {name: float(value) for name, value in (row.split() for row in rows)}
        except (OSError, ValueError):  # no such group here, or no limit: "max"
            continue
        pages = sum(counters.get(f"{prefix}{kind}_file", 0.0) for kind in ("active", "inactive"))
        yield limit - usage + pages, limit


def count_oom_kills(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Count the processes that the kernel has killed for lack of memory; None if unknown.

    They are those of this process's control group, such as its container, so that processes
    killed elsewhere do not count; those of the whole machine if no group has a count.
    """
    groups = control_groups("memory", proc, cgroup)
    counts = [g / ("memory.oom_control" if v1 else "memory.events.local") for g, v1 in groups]
    for file in [*counts, proc / "vmstat"]:
        try:
            rows = dict(row.split() for row in file.read_text().splitlines())
            return int(rows["oom_kill"])
        except (OSError, ValueError, KeyError):  # no such group here, or an older kernel
            continue
    return None
