"""Plans a sweep from lists of overrides: its checked jobs, the keys that vary, its directory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.config.settings import LauncherSettings, make_settings
from runner.errors import ConfigError, UserError, raise_combined
from runner.rundir.secrets import mask_secrets

# Keys of the sweep as a whole, which are part of no job, no identity and no hash of the sweep.
_SWEEP_WIDE_KEYS = re.compile(
    r"((launcher|search)([./]|$)|hydra\.(run\.dir|mode|sweep|launcher|sweeper)([.]|$)"
    r"|hydra/(launcher|sweeper)$)"
)
# Keys of Hydra's own sweeps that are not supported here, and their replacements.
_REFUSED_KEYS = {
    "hydra.run.dir": "the jobs of a sweep lie in its own folder; hydra.sweep.dir=DIR places that",
    "hydra.sweep.subdir": "the folders of jobs are named by their overrides",
    "hydra/sweeper": "a sweep is the grid of its values",
    "hydra.sweeper": "a sweep is the grid of its values",
}
_MAX_PROBLEMS = 10  # most wrong jobs of a large grid that are reported
_MAX_SLUG_LENGTH = 80


@dataclass(frozen=True)
class CheckedJob:
    """A job whose configuration was composed and checked, without importing torch."""

    signature: str
    name: str
    # resolved. The plan reads launcher, monitor, seed and threads from it
    config: Mapping[str, Any]
    # Hydra's `hydra.sweep.dir`, with {name} and {signature} in it
    sweep_dir: str = "outputs/sweeps/{name}_{signature}"

    @property
    def monitor(self) -> tuple[str, str]:
        """The metric by which the job chooses its best step, and its direction."""
        monitor = (self.config.get("checkpoint") or {}).get("monitor") or {}
        return monitor.get("metric", "validation/auc"), monitor.get("direction", "max")


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    Attributes:
        key: its signature, with a suffix where several jobs of the sweep share one (such as
            `trainer.device=cpu,cuda`, which does not change the result).
        overrides: those passed to its process.
        varying: key -> value of the overrides in which the sweep's jobs differ, as written.
        num_threads: of each rank, as the user gave it.
    """

    key: str
    signature: str
    overrides: tuple[str, ...]
    varying: Mapping[str, str]
    seed: Any = None
    shares_signature: bool = False
    num_ranks: int = 1
    num_threads: int | None = None

    @property
    def label(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.varying.items()) or "the only job"

    @property
    def chosen(self) -> tuple[str, ...]:
        """The overrides in which the sweep's jobs differ."""
        keys = set(map(override_key, self.varying))  # those of a search may have a +
        return tuple(o for o in self.overrides if override_key(o) in keys)

    @property
    def short_name(self) -> str:
        """The signature that ends the job's folder; its key where jobs share a signature."""
        return self.key if self.shares_signature else self.signature[:8]


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep, before anything touches the disk.

    Attributes:
        varying: keys in which the jobs differ.
        metric: by which jobs are ranked, as split/name.
        direction: max or min.
        has_num_threads: whether the user gave `trainer.num_threads`.
        is_monitored: whether all jobs choose their best step by the same metric.
        secondary_objectives: further objectives of a search and their directions.
        num_trials: jobs of a search, which are chosen one by one; None for a grid.
        launcher_plugin: its name and settings; None: jobs run on this machine.
        has_pruner: whether jobs ask after each evaluation whether to continue.
    """

    jobs: tuple[SweepJob, ...]
    directory: str
    varying: tuple[str, ...]
    launcher: LauncherSettings
    metric: str
    direction: str
    has_num_threads: bool
    notes: tuple[str, ...] = ()
    is_monitored: bool = True
    secondary_objectives: Mapping[str, str] = field(default_factory=dict)
    num_trials: int | None = None
    launcher_plugin: tuple[str, tuple[str, ...]] | None = None
    has_pruner: bool = False

    @property
    def num_jobs(self) -> int:
        return len(self.jobs) if self.num_trials is None else self.num_trials


def num_ranks(config: Mapping[str, Any]) -> int:
    """Return the number of processes of a job."""
    return int((config.get("trainer") or {}).get("num_processes") or 1)


def num_threads(config: Mapping[str, Any]) -> int | None:
    """Return the threads of each rank of a job; None: the user gave no number."""
    return (config.get("trainer") or {}).get("num_threads")


def override_key(override: str) -> str:
    """Return the key of `key=value` or `+key=value`."""
    return override.split("=", 1)[0].lstrip("+")


def job_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of a job, without those of the sweep as a whole."""
    return tuple(o for o in overrides if not _SWEEP_WIDE_KEYS.match(override_key(o)))


def plan_sweep(
    jobs: Sequence[Sequence[str]],
    check: Callable[[Sequence[str]], CheckedJob],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SweepPlan:
    """Check every job before one starts.

    Args:
        jobs: overrides of each job.
        check: composes and checks one job, and raises UserError.
        progress: called with the number of jobs that are checked, and of all.

    Raises:
        ConfigError: naming the jobs that are wrong.
    """
    if not jobs:
        raise ConfigError("the sweep has no jobs: one of its lists of values is empty")
    overrides_by_job = [job_overrides(o) for o in jobs]
    varying = _varying_keys(overrides_by_job)
    check_sweep_overrides(jobs)
    checked: list[tuple[CheckedJob, Mapping[str, str]]] = []
    problems: dict[str, list[int]] = {}
    first: CheckedJob | None = None
    monitored: dict[str, None] = {}
    threads: int | None = None
    for number, overrides in enumerate(jobs):
        progress(number, len(jobs))
        try:
            job = check(overrides)
        except UserError as problem:
            problems.setdefault(str(problem), []).append(number)
            if len(problems) >= _MAX_PROBLEMS:
                break
            continue
        first = first or job
        monitored[job.monitor[0]] = None
        threads = threads or num_threads(job.config)
        values = {override_key(o): o.split("=", 1)[-1] for o in overrides_by_job[number]}
        # A configuration is large and there may be 10,000 of them: only these values are kept.
        processes = num_ranks(job.config), num_threads(job.config)
        excerpt = {"seed": job.config.get("seed"), "processes": processes}
        slim_job = replace(job, config=excerpt)
        checked.append((slim_job, {k: values[k] for k in varying if k in values}))
    raise_combined(
        _describe_problem(numbers, text, overrides_by_job, varying)
        for text, numbers in problems.items()
    )
    assert first is not None
    planned, notes = _make_jobs(overrides_by_job, checked)
    metric, direction = first.monitor
    return SweepPlan(
        jobs=planned,
        directory=sweep_directory(
            first.sweep_dir,
            [o for o in overrides_by_job[0] if override_key(o) not in varying],
            varying,
            {c.name for c, _ in checked},
        ),
        varying=varying,
        launcher=make_settings(LauncherSettings, first.config.get("launcher") or {}),
        metric=metric,
        direction=direction,
        has_num_threads=threads is not None,
        notes=(*notes, *note_monitors(monitored, metric)),
        is_monitored=len(monitored) == 1,
    )


def note_monitors(monitored: Collection[str], metric: str) -> list[str]:
    """Return a note if jobs choose their best step by other metrics than the one that ranks.

    Args:
        metric: that by which the jobs are ranked.
    """
    if len(monitored) > 1:
        return [
            f"the jobs monitor different metrics ({', '.join(monitored)}): all are ranked by "
            f"{metric}, each at the best step by its own metric, and jobs without it come last"
        ]
    if metric not in monitored and metric.startswith("validation/"):
        return [
            f"the jobs keep their best step by {', '.join(monitored)} (checkpoint.monitor) and are "
            f"judged by {metric} at that step"
        ]
    return []


def slug(job: SweepJob) -> str:
    """Return a readable name for a job's folder. Nothing is ever read back from it."""
    short = _short_keys(list(job.varying))
    # the database and the leaderboard mask a secret in the name, too, which then names no folder
    values = {k: mask_secrets(v, everything=False) for k, v in job.varying.items()}
    parts = [f"{short[k]}-{_safe(v)}" for k, v in values.items()]
    text = _safe("_".join(parts) or "job")[:_MAX_SLUG_LENGTH].strip("-_.")
    return f"{text}_{job.signature}"


def _safe(text: str) -> str:
    """Return a text that is safe in a path and in Hydra's grammar. A number keeps its sign."""
    safe = re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)
    return safe.rstrip("-") if text.startswith("-") else safe.strip("-")


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return for each key its last parts, as many as make it unique."""
    short = {}
    for key in keys:
        parts = re.split(r"[./]", key)
        for count in range(1, len(parts) + 1):
            end = ".".join(parts[-count:])
            if sum(re.split(r"[./]", k)[-count:] == parts[-count:] for k in keys) == 1:
                break
        short[key] = end
    return short


def _varying_keys(jobs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the keys whose overrides differ between jobs, in the order of the command line."""
    texts_of_key: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for overrides in jobs:
        for text in overrides:
            texts_of_key.setdefault(override_key(text), set()).add(text)
        for key in {override_key(text) for text in overrides}:
            count[key] = count.get(key, 0) + 1
    return tuple(k for k, texts in texts_of_key.items() if len(texts) > 1 or count[k] < len(jobs))


def check_sweep_overrides(jobs: Sequence[Sequence[str]]) -> None:
    """Refuse keys that sweeps do not support, and lists of values for keys of the whole sweep.

    Raises:
        ConfigError: for the first of them.
    """
    for text in jobs[0]:
        for name, instead in _REFUSED_KEYS.items():
            if override_key(text) == name or override_key(text).startswith(f"{name}."):
                raise ConfigError(f"{text}: does not hold with -m: {instead}")
    for key in _varying_keys(jobs):
        if _SWEEP_WIDE_KEYS.match(key):
            raise ConfigError(f"{key}: holds for the whole sweep; give it one value")


def _describe_problem(
    numbers: Sequence[int], text: str, jobs: Sequence[Sequence[str]], varying: Sequence[str]
) -> str:
    label = " ".join(o for o in jobs[numbers[0]] if override_key(o) in varying) or "the only job"
    more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
    return f"job {numbers[0] + 1} of {len(jobs)} ({label}){more}: {text}"


def _make_jobs(
    overrides_by_job: Sequence[tuple[str, ...]],
    checked: Sequence[tuple[CheckedJob, Mapping[str, str]]],
) -> tuple[tuple[SweepJob, ...], tuple[str, ...]]:
    """Return jobs with unique keys, and notes. A job that is written twice is one job."""
    by_signature: dict[str, set[tuple[str, ...]]] = {}
    for overrides, (job, _) in zip(overrides_by_job, checked):
        by_signature.setdefault(job.signature, set()).add(tuple(sorted(overrides)))
    jobs: dict[str, SweepJob] = {}
    for overrides, (job, values) in zip(overrides_by_job, checked):
        shares = len(by_signature[job.signature]) > 1
        key = job.signature
        if shares:
            text = json.dumps(sorted(overrides))
            key += "-" + hashlib.sha256(text.encode()).hexdigest()[:4]
        seed, processes = job.config.get("seed"), job.config["processes"]
        one = SweepJob(key, job.signature, overrides, values, seed, shares, *processes)
        jobs.setdefault(key, one)
    notes = []
    num_written = len(overrides_by_job)
    if len(jobs) < num_written:
        num_repeated = num_written - len(jobs)
        notes.append(f"{num_repeated} of {num_written} jobs are written twice and run once")
    shared = next((j for j in jobs.values() if j.shares_signature), None)
    if shared is not None:
        notes.append(
            f"jobs such as {shared.label} differ in nothing that makes the result "
            f"(signature {shared.signature}); each of them is run"
        )
    return tuple(jobs.values()), tuple(notes)


def sweep_directory(
    template: str, fixed: Sequence[str], varying: Sequence[str], names: set[str]
) -> str:
    """Return the sweep's directory, which is the same for the same command with more values.

    The hash covers the fixed overrides and the keys that vary, but not their values, so that a
    grid with an added value finds the jobs that are done.

    Args:
        template: with {name} and {signature} in it.
        fixed: overrides that all jobs share.
        names: of the jobs.
    """
    text = json.dumps([sorted(dict.fromkeys(fixed)), sorted(varying)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    if len(names) == 1:
        name = next(iter(names))
    else:
        name = "sweep-" + "-".join(_short_keys(varying).values())
    return template.replace("{name}", _safe(name)[:_MAX_SLUG_LENGTH]).replace("{signature}", digest)
