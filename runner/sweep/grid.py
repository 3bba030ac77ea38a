"""The source of jobs of a grid, which are known from the start."""

from __future__ import annotations

from collections.abc import Iterator

from runner.sweep.database import SweepDatabase
from runner.sweep.optuna_schema import GridAxis
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome
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

    def jobs(self, state: SweepState) -> Iterator[SweepJob]:
        finished = [(j, o) for j in state.jobs if (o := state.outcomes[j.key]).is_done]
        # The study is made afresh: the grid may have other values than when its jobs ended.
        self.database.reset_trials(state.directory.name, self.plan.metric, self.plan.direction)
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

    def _add_trials(self, ended: list[tuple[SweepJob, Outcome]]) -> None:
        self.database.add_trials(
            (job.varying, self.axes, (o.best if o.is_done else None, o.seconds)) for job, o in ended
        )
