"""How many threads a job computes on, and how long they wait for work before they sleep."""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

# OpenMP's threads spin this often between two pieces of work before they sleep. Measured on two
# cores, rows/s of a DLRM-like step while others computed on both: 300 gave 34k, 0 (sleep at once)
# 32k, 1,000 27k, 3,000 18k, 10,000 15k, OpenMP's default 10k, which is best when all is quiet.
SPIN_COUNT = "300"


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
