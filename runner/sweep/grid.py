"""The source of jobs of a grid, which are known from the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.sweep.database import SweepDatabase
from runner.sweep.optuna_schema import GridAxis
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome, find_ranking_metric
from runner.sweep.sweep_state import SweepState


class GridJobs:
    """Yields the jobs that are not done, and adds those that end as trials to an Optuna study.

    So optuna-dashboard shows a grid while it runs.
    """

    def __init__(self, plan: SweepPlan, database: SweepDatabase) -> None:
        self.plan, self.database = plan, database
        self.axes = {
            key: GridAxis(j.varying[key] for j in plan.jobs if key in j.varying)
            for key in plan.varying
        }
        self._metric: str | None = None  # that ranks; None: no job has it yet
        self._ended: list[tuple[SweepJob, Outcome]] = []

    def jobs(self, state: SweepState) -> Iterator[SweepJob]:
        finished = [(j, o) for j in state.jobs if (o := state.outcomes[j.key]).is_done]
        # The study is made afresh: the grid may have other values than when its jobs ended.
        self._reset_trials()
        self._add_trials(finished)
        done_keys = {job.key for job, _ in finished}
        yield from [job for job in state.jobs if job.key not in done_keys]

    def receive_outcome(self, job: SweepJob, outcome: Outcome) -> str | None:
        """Record a job's outcome; return why the sweep must stop, or None."""
        if outcome.is_done or outcome.status == "failed":
            self._add_trials([(job, outcome)])
        return None

    def num_trials(self, job: SweepJob) -> int:
        return 1

    def pareto_front(self) -> set[str]:
        return set()

    def close(self) -> None:
        """Do nothing: the database belongs to the sweep."""

    def _reset_trials(self) -> None:
        name, metric = Path(self.plan.directory).name, self._metric or self.plan.metric
        self.database.reset_trials(name, metric, self.plan.direction)

    def _add_trials(self, ended: list[tuple[SweepJob, Outcome]]) -> None:
        self._ended += ended
        metric = find_ranking_metric(self.plan, (o for _, o in ended), self._metric)
        if metric is not None and metric != self._metric:  # a study has one metric
            self._metric, ended = metric, self._ended
            self._reset_trials()
        name = self._metric or self.plan.metric
        self.database.add_trials(
            (job.varying, self.axes, (o.ranking_value(name) if o.is_done else None, o.seconds))
            for job, o in ended
        )
