"""The cores that this process may use, by its control groups, and the threads of OpenMP."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, MutableMapping
from pathlib import Path

# How often a thread of OpenMP spins between two tasks before it sleeps. Measured on two cores that
# other processes used as well, in rows/s of a DLRM-like step: 300 gave 34k, 0 (sleep at once) 32k,
# 1,000 27k, 3,000 18k, 10,000 15k and OpenMP's default 10k. The default is best on an idle machine.
OPENMP_SPIN_COUNT = "300"


def usable_cores(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the cores that this process may use: its affinity, or its container's share if less."""
    cores = len(os.sched_getaffinity(0))
    for group, is_v1 in control_groups("cpu", proc, cgroup):
        try:
            if is_v1:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = (int((group / name).read_text()) for name in names)
            else:
                quota, period = map(int, (group / "cpu.max").read_text().split())
        except (OSError, ValueError):  # no such group here, or no limit: "max"
            continue
        if quota > 0:
            cores = max(1, min(cores, math.ceil(quota / period)))
    return cores


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, with those extensions that determine how fast bf16 is."""
    try:
        facts = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
    except OSError:  # the system is not Linux
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, value in facts.items()}
    known = set(fields.get("flags", "").split()) & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}
    return ", ".join([fields.get("model name", platform.machine()), *sorted(known)])


def set_thread_environment(
    num_threads: int | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set the variables that OpenMP reads once, when torch is imported.

    Variables that the user has set stay as they are.
    """
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPIN_COUNT)
    environment.setdefault("OMP_NUM_THREADS", str(num_threads or usable_cores()))


def control_groups(controller: str, proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, and whether they are of version 1.

    Their parents follow, since their limits apply as well. A container may see its own group as
    the root, under a path that does not exist.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # the system is not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_v1 = bool(controllers)
        if is_v1 and controller not in controllers.split(","):
            continue
        root = cgroup / controller if is_v1 else cgroup
        group = root / path.lstrip("/")
        while True:
            yield group, is_v1
            if group == root:
                break
            group = group.parent
