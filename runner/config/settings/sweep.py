"""The keys of conf/search/, conf/launcher/ and conf/remote/: jobs in other processes.

None of them enters a signature (see config/signature.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.config_key import Key

SAMPLERS = ("tpe", "random", "grid", "quasi-random", "gp", "nsga2")


@dataclass(frozen=True)
class SearchSettings:
    """How a search chooses its jobs."""

    space: Annotated[
        dict[str, str],
        Key(
            "key: choice(a, b), range(1, 9), interval(0, 1), tag(log, interval(1e-4, 1)), "
            "tag(int, interval(8, 64))"
        ),
    ]
    sampler: Annotated[
        str, Key("one of the samplers, of which each has an option of its own", choices=SAMPLERS)
    ] = "tpe"
    pruner: Annotated[
        str,
        Key(
            "none, asha, or median: stops a job that is worse than the median of the others at "
            "the same evaluation",
            choices=("none", "median", "asha"),
        ),
    ] = "none"
    pruner_first: Annotated[
        int, Key("evaluations that every job gets", ge=1, unit="evaluations")
    ] = 1
    pruner_factor: Annotated[
        int,
        Key(
            "asha: one job in so many goes on, after 1, 3, 9, ... evaluations",
            ge=2,
            note="one job in so many goes on",
            unit="jobs",
        ),
    ] = 3
    pruner_after: Annotated[
        int, Key("median: nothing is stopped before so many jobs have ended", ge=1, unit="jobs")
    ] = 4
    num_trials: Annotated[
        int | None,
        Key("in all, those of earlier starts included; null: a whole grid", ge=1, unit="jobs"),
    ] = 20
    seed: Annotated[int, Key("of the sampler, not of the jobs")] = 0
    objectives: Annotated[
        dict[str, str] | None,
        Key(
            "{metric of a result: max or min}; null: checkpoint.monitor. Two or more: a Pareto "
            "front"
        ),
    ] = None
    each_job: Annotated[
        dict[str, Any],
        Key("{key: value} of every job, where the command line does not give the key"),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class LauncherSettings:
    """How the jobs of a sweep run on this machine."""

    slots: Annotated[
        int,
        Key(
            "jobs at once; each gets its share of the cores (and of several GPUs)",
            ge=1,
            unit="jobs",
        ),
    ] = 1
    timeout_s: Annotated[
        float | None,
        Key(
            "seconds that one job may take; then it is asked to save and stop, and counts as "
            "failed",
            gt=0,
            note="null sets no limit",
            unit="seconds",
        ),
    ] = None
    retries: Annotated[
        int,
        Key(
            "further tries of a job that failed or was killed; it goes on from its checkpoint",
            ge=0,
            unit="tries",
        ),
    ] = 0
    fork_server: Annotated[
        bool,
        Key(
            "torch is imported once for all jobs, which are forked from that process; where there "
            "is a GPU, for jobs of several ranks and off Linux each job imports for itself"
        ),
    ] = True


@dataclass(frozen=True)
class RemoteSettings:
    """What a training on a Ray cluster asks of it."""

    address: Annotated[
        str | None,
        Key("of the cluster: auto, ray://host:10001; null: RAY_ADDRESS, or a Ray of this machine"),
    ] = None
    num_cpus: Annotated[
        float,
        Key("that the job asks the cluster for, on each node", ge=0, lt=math.inf, unit="CPUs"),
    ] = 1
    num_gpus: Annotated[
        float,
        Key("that the job asks the cluster for, on each node", ge=0, lt=math.inf, unit="GPUs"),
    ] = 0
    nodes: Annotated[
        int,
        Key("that share the training, each with trainer.num_processes ranks", ge=1, unit="nodes"),
    ] = 1
    dir: Annotated[
        str | None,
        Key("on the cluster, for the whole run directory; null: only what comes back is kept"),
    ] = None
    bring_back: Annotated[
        str,
        Key(
            "which checkpoints come back: none, last, best (it and the last), or all",
            choices=("none", "last", "best", "all"),
        ),
    ] = "none"
    runtime_env: Annotated[dict[str, Any], Key("Ray's: packages, variables, working_dir")] = field(
        default_factory=dict
    )
