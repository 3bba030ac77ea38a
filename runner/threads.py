"""How many threads a job computes on, and how long they wait for work before they sleep."""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

# OpenMP's threads spin this often between two pieces of work. Its default is fastest on a quiet
# machine and several times slower than sleeping at once on one where others compute too.
SPIN_COUNT = "1000"


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
    environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    environment.setdefault("OMP_NUM_THREADS", str(num_threads or usable_cores()))
