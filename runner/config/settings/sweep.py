"""The keys of conf/search/, conf/launcher/ and conf/remote/: jobs in other processes.

None of them enters a signature (see config/signature.py).
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from typing import Any

from runner.config_key import setting

SAMPLERS = ("tpe", "random", "grid", "quasi-random", "gp", "nsga2")


@dataclass(frozen=True)
class SearchSettings:
    """How a search chooses its jobs."""

    space: dict[str, str] = setting(
        MISSING,
        "key: choice(a, b), range(1, 9), interval(0, 1), tag(log, interval(1e-4, 1)), tag(int, "
        "interval(8, 64))",
    )
    sampler: str = setting("tpe", "one of the samplers; each has its own option", choices=SAMPLERS)
    pruner: str = setting(
        "none",
        "none, asha, or median: stops a job that is worse than the median of the others at the "
        "same evaluation",
        choices=("none", "median", "asha"),
    )
    pruner_first: int = setting(1, "evaluations that every job gets", ge=1, unit="evaluations")
    pruner_factor: int = setting(
        3,
        "asha: one job in so many goes on, after 1, 3, 9, ... evaluations",
        ge=2,
        note="one job in so many goes on",
        unit="jobs",
    )
    pruner_after: int = setting(
        4, "median: nothing is stopped before so many jobs have ended", ge=1, unit="jobs"
    )
    num_trials: int | None = setting(
        20, "in all, those of earlier starts included; null: a whole grid", ge=1, unit="jobs"
    )
    seed: int = setting(0, "of the sampler, not of the jobs", ge=0, lt=2**63)
    objectives: dict[str, str] | None = setting(
        None,
        "{metric of a result: max or min}; null: checkpoint.monitor. Two or more: a Pareto front",
    )
    each_job: dict[str, Any] = setting(
        dict, "{key: value} of every job, where the command line does not give the key"
    )


@dataclass(frozen=True)
class LauncherSettings:
    """How the jobs of a sweep run on this machine."""

    slots: int = setting(
        1, "jobs at once; each gets its share of the cores (and of several GPUs)", ge=1, unit="jobs"
    )
    timeout_s: float | None = setting(
        None,
        "seconds that one job may take; then it is asked to save and stop, and counts as failed",
        gt=0,
        note="null sets no limit",
        unit="seconds",
    )
    retries: int = setting(
        0,
        "further tries of a job that failed or was killed; it goes on from its checkpoint",
        ge=0,
        unit="tries",
    )
    fork_server: bool = setting(
        True,
        "torch is imported once for all jobs, which are forked from that process; where there is a "
        "GPU, for jobs of several ranks and off Linux each job imports for itself",
    )


@dataclass(frozen=True)
class RemoteSettings:
    """What a training on a Ray cluster asks of it."""

    address: str | None = setting(
        None, "of the cluster: auto, ray://host:10001; null: RAY_ADDRESS, or a Ray of this machine"
    )
    num_cpus: float = setting(
        1, "that the job asks the cluster for, on each node", ge=0, lt=math.inf, unit="CPUs"
    )
    num_gpus: float = setting(
        0, "that the job asks the cluster for, on each node", ge=0, lt=math.inf, unit="GPUs"
    )
    nodes: int = setting(
        1, "that share the training, each with trainer.num_processes ranks", ge=1, unit="nodes"
    )
    dir: str | None = setting(
        None, "on the cluster, for the whole run directory; null: only what comes back is kept"
    )
    bring_back: str = setting(
        "none",
        "which checkpoints come back: none, last, best (it and the last), or all",
        choices=("none", "last", "best", "all"),
    )
    runtime_env: dict[str, Any] = setting(dict, "Ray's: packages, variables, working_dir")
