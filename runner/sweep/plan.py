"""From lists of overrides to checked jobs: what varies, who is who, and where the sweep lies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.errors import ConfigError, UserError, combined_error
from runner.sweep.settings import LauncherSettings, read_launcher_settings

# About the sweep as a whole: no part of a job, of its identity or of the sweep's hash.
_SWEEP_WIDE_KEYS = re.compile(
    r"((launcher|search)([./]|$)|hydra\.(run\.dir|mode|sweep|launcher|sweeper)([.]|$)"
    r"|hydra/(launcher|sweeper)$)"
)
# What Hydra's own sweeps know and these do not, with what to write instead.
_REFUSED = {
    "hydra.run.dir": "a sweep's jobs lie in its own folder; hydra.sweep.dir=DIR places that",
    "hydra.sweep.subdir": "jobs' folders are named by their overrides",
    "hydra/sweeper": "a sweep is the grid of its values",
    "hydra.sweeper": "a sweep is the grid of its values",
}
_MAX_MISTAKES = 10  # of a large grid; enough to see what is wrong with it
_MAX_SLUG_LENGTH = 80


@dataclass(frozen=True)
class CheckedJob:
    """What the caller found of one job, without importing torch.

    config: resolved; read for the launcher, the monitor, the seed and the threads, and not kept;
    sweep_dir: Hydra's `hydra.sweep.dir`, with {name} and {signature} in it.
    """

    signature: str
    name: str
    config: Mapping[str, Any]
    sweep_dir: str = "outputs/sweeps/{name}_{signature}"


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    key: its signature, with more behind it where several jobs of the sweep share one (such as
    `trainer.device=cpu,cuda`, which does not make the result); overrides: what its process gets;
    varying: the overrides in which the sweep's jobs differ, as they are written.
    """

    key: str
    signature: str
    overrides: tuple[str, ...]
    varying: Mapping[str, str]
    seed: Any = None
    shares_signature: bool = False
    num_ranks: int = 1

    @property
    def label(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.varying.items()) or "the only job"


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep, before anything touches the disk."""

    jobs: tuple[SweepJob, ...]
    directory: str
    varying: tuple[str, ...]  # keys
    launcher: LauncherSettings
    metric: str  # that jobs are ranked by, as split/name
    direction: str  # max or min
    has_num_threads: bool  # the user gave trainer.num_threads
    notes: tuple[str, ...] = ()
    is_monitored: bool = True  # the metric is the one that jobs choose their best step by
    secondary_objectives: Mapping[str, str] = field(
        default_factory=dict
    )  # further objectives: metric, direction
    num_trials: int | None = None  # jobs of a search, which are chosen one by one
    launcher_plugin: tuple[str, tuple[str, ...]] | None = None  # a launcher plugin and its settings
    has_pruner: bool = False  # jobs ask after each evaluation whether to go on

    @property
    def num_jobs(self) -> int:
        return len(self.jobs) if self.num_trials is None else self.num_trials


def num_ranks(config: Mapping[str, Any]) -> int:
    return int((config.get("trainer") or {}).get("num_processes") or 1)


def override_key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+")


def job_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Without what belongs to the sweep as a whole."""
    return tuple(o for o in overrides if not _SWEEP_WIDE_KEYS.match(override_key(o)))


def plan_sweep(
    jobs: Sequence[Sequence[str]],
    check: Callable[[Sequence[str]], CheckedJob],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SweepPlan:
    """Checks every job before one starts. Raises: ConfigError naming the jobs that are wrong."""
    if not jobs:
        raise ConfigError("the sweep has no jobs: one of its lists of values is empty")
    own = [job_overrides(o) for o in jobs]
    varying = _varying_keys(own)
    check_sweep_overrides(jobs)
    checked: list[tuple[CheckedJob, Mapping[str, str]]] = []
    problems: dict[str, list[int]] = {}
    first: CheckedJob | None = None
    threads: int | None = None
    for number, overrides in enumerate(jobs):
        progress(number, len(jobs))
        try:
            found = check(overrides)
        except UserError as error:
            problems.setdefault(str(error), []).append(number)
            if len(problems) >= _MAX_MISTAKES:
                break
            continue
        first = first or found
        threads = threads or (found.config.get("trainer") or {}).get("num_threads")
        values = {override_key(o): o.split("=", 1)[-1] for o in own[number]}
        # A configuration is large and there may be 10,000 of them: only this much of it is kept.
        kept = {"seed": found.config.get("seed"), "num_ranks": num_ranks(found.config)}
        slim = replace(found, config=kept)
        checked.append((slim, {k: values[k] for k in varying if k in values}))
    if problems:
        raise combined_error(
            _describe_problem(numbers, text, own, varying) for text, numbers in problems.items()
        )
    assert first is not None
    planned, notes = _make_jobs(own, checked)
    monitor = (first.config.get("checkpoint") or {}).get("monitor") or {}
    return SweepPlan(
        jobs=planned,
        directory=sweep_directory(
            first.sweep_dir,
            [o for o in own[0] if override_key(o) not in varying],
            varying,
            {c.name for c, _ in checked},
        ),
        varying=varying,
        launcher=read_launcher_settings(first.config.get("launcher")),
        metric=monitor.get("metric", "validation/auc"),
        direction=monitor.get("direction", "max"),
        has_num_threads=threads is not None,
        notes=notes,
    )


def slug(job: SweepJob) -> str:
    """A folder's name for a person to read. Nothing is ever read back from it."""
    short = _short_keys(list(job.varying))
    parts = [f"{short[k]}-{_safe(v)}" for k, v in job.varying.items()]
    text = _safe("_".join(parts) or "job")[:_MAX_SLUG_LENGTH].strip("-_.")
    return f"{text}_{job.signature}"


def _safe(text: str) -> str:
    """In a path, and in a value of Hydra's grammar without quotes; a number keeps its sign."""
    safe = re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)
    return safe.rstrip("-") if text.startswith("-") else safe.strip("-")


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last parts of each key that tell it from the others."""
    found = {}
    for key in keys:
        parts = re.split(r"[./]", key)
        for count in range(1, len(parts) + 1):
            end = ".".join(parts[-count:])
            if sum(re.split(r"[./]", k)[-count:] == parts[-count:] for k in keys) == 1:
                break
        found[key] = end
    return found


def _varying_keys(jobs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Keys of overrides that are not the same in all jobs, in the order they are written in."""
    seen: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for overrides in jobs:
        for text in overrides:
            seen.setdefault(override_key(text), set()).add(text)
        for key in {override_key(text) for text in overrides}:
            count[key] = count.get(key, 0) + 1
    return tuple(k for k, texts in seen.items() if len(texts) > 1 or count[k] < len(jobs))


def check_sweep_overrides(jobs: Sequence[Sequence[str]]) -> None:
    for text in jobs[0]:
        for name, instead in _REFUSED.items():
            if override_key(text) == name or override_key(text).startswith(f"{name}."):
                raise ConfigError(f"{text}: not with -m: {instead}")
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
    own: Sequence[tuple[str, ...]], checked: Sequence[tuple[CheckedJob, Mapping[str, str]]]
) -> tuple[tuple[SweepJob, ...], tuple[str, ...]]:
    """Jobs with keys of their own; a job written twice is one job."""
    alike: dict[str, set[tuple[str, ...]]] = {}
    for overrides, (found, _) in zip(own, checked):
        alike.setdefault(found.signature, set()).add(tuple(sorted(overrides)))
    jobs: dict[str, SweepJob] = {}
    for overrides, (found, values) in zip(own, checked):
        shares = len(alike[found.signature]) > 1
        key = found.signature
        if shares:
            text = json.dumps(sorted(overrides))
            key += "-" + hashlib.sha256(text.encode()).hexdigest()[:4]
        seed = found.config.get("seed")
        ranks = found.config["num_ranks"]
        jobs.setdefault(key, SweepJob(key, found.signature, overrides, values, seed, shares, ranks))
    notes = []
    if len(jobs) < len(own):
        notes.append(f"{len(own) - len(jobs)} of {len(own)} jobs are written twice and run once")
    shared = next((j for j in jobs.values() if j.shares_signature), None)
    if shared is not None:
        notes.append(
            f"jobs such as {shared.label} differ in nothing that makes the result "
            f"(signature {shared.signature}); each is run"
        )
    return tuple(jobs.values()), tuple(notes)


def sweep_directory(
    template: str, fixed: Sequence[str], varying: Sequence[str], names: set[str]
) -> str:
    """Where the sweep lies: the same for the same command, and for one with more values.

    The hash is of the fixed overrides and of the keys that vary, not of their values: so a value
    added to a grid finds the jobs that are done.
    """
    text = json.dumps([sorted(dict.fromkeys(fixed)), sorted(varying)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    if len(names) == 1:
        name = next(iter(names))
    else:
        name = "sweep-" + "-".join(_short_keys(varying).values())
    return template.replace("{name}", _safe(name)[:_MAX_SLUG_LENGTH]).replace("{signature}", digest)
