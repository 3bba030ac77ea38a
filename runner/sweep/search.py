"""A search: the jobs of a sweep are chosen one by one, by the results of earlier ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.early_stopping import natural_direction
from runner.config.settings import RESULT_SPLITS, LauncherSettings, SearchSettings, make_settings
from runner.config.signature import signed_as
from runner.errors import UserError, nearest_hint, raise_combined
from runner.metrics.result_keys import measured_names
from runner.sweep.plan import (
    CheckedJob,
    SweepJob,
    SweepPlan,
    check_sweep_overrides,
    job_overrides,
    note_monitors,
    num_ranks,
    num_threads,
    override_key,
    sweep_directory,
)
from runner.sweep.run_index import Outcome
from runner.sweep.space import Space, combinations, corners

if TYPE_CHECKING:
    from runner.sweep.database import SweepDatabase
    from runner.sweep.optuna_trials import Trial, Trials
    from runner.sweep.sweep_state import SweepState

CheckJob = Callable[[Sequence[str]], CheckedJob]


_READ_BY_PRUNERS = {
    "pruner_first": ("asha", "median"),
    "pruner_factor": ("asha",),
    "pruner_after": ("median",),
}
_MIN_ALIKE_FAILURES = 3  # failures at the start of a search after which it stops


@dataclass(frozen=True)
class SearchSpec:
    """The space and the settings of a search."""

    space: Space
    settings: SearchSettings
    fixed: tuple[str, ...]  # overrides of every job
    check: CheckJob
    objectives: Mapping[str, str]  # metric -> max or min


def plan_search(
    fixed: Sequence[str], space: Space, settings: SearchSettings, check: CheckJob
) -> tuple[SweepPlan, SearchSpec]:
    """Check the space, the objectives and the pruner before anything starts.

    Args:
        fixed: overrides of every job.
        check: composes and checks one job, and raises UserError.

    Raises:
        ConfigError: with every mistake, unknown keys of the space among them.
    """
    check_sweep_overrides([[*fixed, *(f"{d.key}=" for d in space)]])
    fixed_of_jobs = job_overrides(fixed)
    checked = _check_corners(fixed, space, check, settings.each_job)
    first = checked[-1]
    monitored = dict(job.monitor for job in checked)
    objectives = dict(settings.objectives or [first.monitor])
    problems = [
        *_wrong_objectives(objectives, first.config),
        *_wrong_pruner(settings, first.config),
    ]
    if settings.num_trials is None and settings.sampler != "grid":
        problems.append(
            f"search.num_trials=null: only a grid has an end; {settings.sampler} has none; "
            "give search.num_trials=20"
        )
    total = settings.num_trials or 0
    if settings.sampler == "grid":
        count = sum(1 for _ in combinations(space))  # raises if they cannot be counted
        total = min(total or count, count)
    raise_combined(problems)
    # The number of trials is not part of the identity, so that a longer search continues.
    # What `each_job` sets is among the fixed overrides.
    unsigned = ("num_trials", "space", "each_job")
    signed = {k: v for k, v in asdict(settings).items() if k not in unsigned}
    signed |= {"space": [asdict(d) for d in space], "objectives": objectives}
    metric, *others = objectives
    plan = SweepPlan(
        jobs=(),
        directory=sweep_directory(
            first.sweep_dir,
            [*fixed_of_jobs, json.dumps(signed, sort_keys=True)],
            [d.key for d in space],
            {first.name},
        ),
        varying=tuple(d.key for d in space),
        launcher=make_settings(LauncherSettings, first.config.get("launcher") or {}),
        metric=metric,
        direction=objectives[metric],
        has_num_threads=num_threads(first.config) is not None,
        notes=tuple(note_monitors(monitored, metric)),
        is_monitored=set(monitored) == {metric},
        secondary_objectives={name: objectives[name] for name in others},
        num_trials=total,
        has_pruner=settings.pruner != "none",
    )
    return plan, SearchSpec(space, settings, fixed_of_jobs, check, objectives)


def _check_corners(
    fixed: Sequence[str], space: Space, check: CheckJob, each_job: Collection[str]
) -> list[CheckedJob]:
    """Check jobs with the ends of all dimensions, and return them."""
    jobs, problems = [], []
    for corner in corners(space):
        try:
            jobs.append(check([*fixed, *corner]))
        except UserError as error:
            is_of_each = str(error).startswith(tuple(f"{key}{c}" for key in each_job for c in "=."))
            problems.append(
                f"search.each_job.{error}" if is_of_each else f"the search's space: {error}"
            )
    models = [m for d in space if d.key == "model" for m in d.choices]
    if len(models) > 1 and any("there is no key 'model." in problem for problem in problems):
        problems.append(
            f"search.space: every one of the models {', '.join(models)} must have each key that "
            "is searched: search one model at a time, or write conf/search/mine.yaml (a copy of "
            "one of ours) with a space of the keys that all have: --config-dir conf search=mine"
        )
    raise_combined(problems)
    assert jobs, "a space has corners"
    return jobs


def _wrong_objectives(objectives: Mapping[str, str], config: Mapping[str, Any]) -> Iterator[str]:
    measured = config.get("metrics") or {}
    for name, direction in objectives.items():
        if direction not in ("max", "min"):
            yield f"search.objectives: {name}: {direction}: a direction is max or min"
        elif (better := natural_direction(name) or direction) != direction:
            yield f"search.objectives: {name}: {direction}: {better} is better for {name}"
        split, _, metric = name.partition("/")
        names = measured_names(measured, "train" if split == "train" else "eval")
        known = [f"{s}/{n}" for s in RESULT_SPLITS[1:] for n in measured_names(measured)]
        known += ["active_s"]
        if metric and split in RESULT_SPLITS and metric.split("/")[0] in names:
            continue
        if name not in known:
            yield (
                f"search.objectives: {name}: is not among the results"
                f"{nearest_hint(name, known)}; there are {', '.join(known)}"
            )


def _wrong_pruner(settings: SearchSettings, config: Mapping[str, Any]) -> Iterator[str]:
    if settings.pruner == "none":
        return
    name = f"search.pruner={settings.pruner}"
    objectives = list(settings.objectives or ())
    if len(objectives) > 1:
        yield (
            f"{name}: stops jobs by one objective, and there are {len(objectives)}; "
            "search.pruner=none stops none"
        )
    elif objectives and not objectives[0].startswith("validation/"):
        yield (
            f"{name}: {objectives[0]} is not measured while a job runs; validation/... is, and "
            "search.pruner=none stops none"
        )
    trainer = config.get("trainer") or {}
    every, epochs = trainer.get("eval_every"), trainer.get("max_epochs")
    steps = trainer.get("max_steps")
    is_late = isinstance(every, int) and steps is not None and every >= steps
    if every is None or (str(every) == "1ep" and epochs == 1) or is_late:
        often = 100 if steps is None else max(1, min(100, steps // 4))
        yield (
            f"{name}: a job that evaluates only at its end cannot be stopped early "
            f"(trainer.eval_every={every}); trainer.eval_every={often} evaluates every {often} "
            "updates"
        )


def find_idle_settings(settings: SearchSettings, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each setting of a search that its sampler or pruner does not read.

    Args:
        defaults: the same without overrides.
    """
    for name, pruners in _READ_BY_PRUNERS.items():
        value = getattr(settings, name)
        if settings.pruner not in pruners and value != defaults.get(name, value):
            yield f"search.{name}={value} has no effect with search.pruner={settings.pruner}"
    if settings.sampler == "grid" and settings.seed != defaults.get("seed", settings.seed):
        yield f"search.seed={settings.seed} has no effect with search.sampler=grid"


def _check_same_settings(
    directory: str, jobs: Sequence[SweepJob], ended: Collection[tuple[str, Sequence[str]]]
) -> None:
    """Check that the values of earlier trials are those of this search's jobs.

    Args:
        jobs: the trials' jobs, as this search makes them.
        ended: signature and overrides of the jobs that gave the values.

    Raises:
        UserError: naming the keys of results in which they differ.
    """
    known = {signature for signature, _ in ended}
    for job in jobs:
        chosen = set(job.chosen)
        for _, overrides in ended if job.signature not in known else ():
            if not chosen <= set(overrides):
                continue  # a job of another trial
            keys = sorted({override_key(o) for o in set(overrides) ^ set(job.overrides)})
            # a dataset is signed by its content
            signed = [k for k in keys if k.startswith("dataset") or signed_as(k) != "no"]
            old = [
                next((o for o in overrides if override_key(o) == k), f"the default {k}")
                for k in signed
            ]
            what = f"had {', '.join(old)}" if old else "had other data, defaults or code"
            raise UserError(
                f"{directory}: holds the trials of another search, whose jobs {what}; another "
                "hydra.sweep.dir begins a new one, and that of this folder goes on only as it was"
            )


class SearchJobs:
    """Yields the jobs of a search and records their outcomes. Only the sweep's loop calls it.

    Attributes:
        trials: all trials so far.
        trial_numbers: trials of each job, by the job's key, as a point may be chosen twice.
        plan: the sweep, with the jobs of earlier starts.
    """

    def __init__(self, spec: SearchSpec, plan: SweepPlan, database: SweepDatabase) -> None:
        """Open the search in the sweep's directory.

        Args:
            plan: the sweep, without jobs.
            database: of the sweep, with the jobs of earlier starts.

        Raises:
            SweepDatabaseError: if the database cannot be used, or has another search.
        """
        # This imports Optuna, for which a plain grid need not wait.
        from runner.sweep.optuna_trials import Trials

        self.spec = spec
        self.trials: Trials = Trials(
            *(Path(plan.directory), spec.space, spec.settings, spec.objectives),
            slots=plan.launcher.slots,
        )
        self.trial_numbers: dict[str, list[int]] = {}
        # takes a job that a trial chooses after its end, such as one of a lost database
        self.tell_known: Callable[[SweepJob, Outcome], None] = lambda job, outcome: None
        self._running: set[str] = set()  # keys of the jobs that were given and have not ended
        self._only_error: str | None = None  # of all jobs that ended so far, if they failed alike
        self._failed: list[SweepJob] | None = []  # with it; None once a job has ended otherwise
        trials = self.trials.list_trials()
        jobs = {j.key: j for j in map(self._make_job, trials)}
        self.trials.check_values()
        _check_same_settings(plan.directory, [*jobs.values()], database.ended_jobs())
        self.plan = replace(
            plan, jobs=tuple(jobs.values()), num_trials=max(plan.num_jobs, len(trials))
        )

    def jobs(self, state: SweepState) -> Iterator[SweepJob]:
        """Yield jobs of earlier starts that are not done, then new ones until all are chosen."""
        for job in self.plan.jobs:
            outcome = state.outcomes[job.key]
            if outcome.is_done:
                self._failed = None
                for number in self.trial_numbers[job.key]:
                    self._end_trial(number, outcome)
            else:
                self._running.add(job.key)
                yield job
        while len(self.trials.list_trials()) < self.plan.num_jobs:
            trial = self.trials.ask()
            job = self._make_job(trial)
            if job.key in self._running:
                continue  # the same point again while it runs; `receive_outcome` ends both trials
            if job.key not in state.outcomes:
                state.add_job(job)
            outcome = state.outcomes[job.key]
            if outcome.status in ("completed", "pruned", "failed"):
                self._end_trial(trial.number, outcome)
                self.tell_known(job, outcome)
            else:
                self._running.add(job.key)
                yield job

    def receive_outcome(self, job: SweepJob, outcome: Outcome) -> str | None:
        """Take a job's outcome and return why the sweep must stop; None if it need not."""
        self._running.discard(job.key)
        for number in self.trial_numbers[job.key]:
            self._end_trial(number, outcome)
        if self._failed is not None and self._fails_whatever_is_chosen(job, outcome):
            return (
                f"all of its {len(self._failed)} jobs failed with the same error, whatever values "
                "were chosen"
            )
        values = {self.plan.metric: outcome.best, **outcome.secondary_values}
        missing = [name for name, value in values.items() if value is None]
        if outcome.status == "completed" and missing and missing[0] not in outcome.result_names:
            return (
                f"search.objectives: {missing[0]}: is not among the results of {job.label}"
                f"{nearest_hint(missing[0], outcome.result_names)}; there are "
                f"{', '.join(outcome.result_names)}"
            )
        return None

    def num_trials(self, job: SweepJob) -> int:
        """Return how many trials have chosen a job."""
        return len(self.trial_numbers[job.key])

    def pareto_front(self) -> set[str]:
        """Return the keys of the jobs that no other job beats in every objective."""
        if not self.plan.secondary_objectives:
            return set()
        best = self.trials.pareto_front()
        return {key for key, numbers in self.trial_numbers.items() if best & set(numbers)}

    def close(self) -> None:
        self.trials.close()

    def _fails_whatever_is_chosen(self, job: SweepJob, outcome: Outcome) -> bool:
        """Return whether all jobs failed with one error, and no value of a choice is common."""
        if outcome.status != "failed" or self._only_error not in (None, outcome.error):
            self._failed = None
        if self._failed is None:
            return False
        self._only_error = outcome.error
        self._failed.append(job)
        return len(self._failed) >= _MIN_ALIKE_FAILURES and all(
            len({j.varying[key] for j in self._failed}) > 1
            for key, distribution in self.trials.distributions.items()
            if not distribution.single()
        )

    def _end_trial(self, number: int, outcome: Outcome) -> None:
        if outcome.status in ("completed", "pruned", "failed"):
            values = [outcome.best, *outcome.secondary_values.values()]
            self.trials.tell(number, outcome.status, values)

    def _make_job(self, trial: Trial) -> SweepJob:
        space = self.spec.space
        varying = {d.key: str(trial.params[d.key]) for d in space}
        for dimension in space:
            value = varying[dimension.key]
            if "${" in value and value not in dimension.choices:  # a database that was sent
                raise UserError(
                    f"study.db: trial {trial.number} has {dimension.key}={value}, which this "
                    "search cannot have chosen"
                )
        overrides = (*self.spec.fixed, *(f"{k}={v}" for k, v in varying.items()))
        digest = hashlib.sha256(json.dumps(sorted(overrides)).encode()).hexdigest()
        try:
            job = self.spec.check(overrides)
        except UserError:  # this combination is wrong; the job's own process will say why
            job = CheckedJob(digest[:8], "", {})
        key = f"{job.signature}-{digest[:4]}"
        self.trial_numbers.setdefault(key, []).append(trial.number)
        seed, processes = job.config.get("seed"), (num_ranks(job.config), num_threads(job.config))
        return SweepJob(key, job.signature, overrides, varying, seed, True, *processes)
