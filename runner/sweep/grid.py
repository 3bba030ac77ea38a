"""A grid at work: its jobs are known from the start; those who look at `study.db` with
optuna-dashboard see what they came to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.sweep.database import Study
from runner.sweep.optuna_schema import Axis
from runner.sweep.plan import Job, SweepPlan
from runner.sweep.run_index import Outcome

if TYPE_CHECKING:
    from runner.sweep.sweep_state import Standing


class Grid:
    """Gives the jobs that are not done."""

    def __init__(self, plan: SweepPlan, study: Study) -> None:
        self.plan, self.study = plan, study
        self.axes = {
            key: Axis(j.varying[key] for j in plan.jobs if key in j.varying) for key in plan.varying
        }

    def jobs(self, standing: Standing) -> Iterator[Job]:
        done = [(j, o) for j in standing.jobs if (o := standing.outcomes[j.key]).is_done]
        # Made afresh: the grid may have other values than when its jobs ended.
        self.study.begin_trials(standing.directory.name, self.plan.metric, self.plan.direction)
        self._tell(done)
        keys = {job.key for job, _ in done}
        yield from [job for job in standing.jobs if job.key not in keys]

    def ended(self, job: Job, outcome: Outcome) -> str | None:
        """Takes what a job came to; returns why it makes no sense to go on, if so."""
        if outcome.is_done or outcome.status == "failed":
            self._tell([(job, outcome)])
        return None

    def front(self) -> set[str]:
        return set()

    def close(self) -> None:
        """Nothing is open but the sweep's own database."""

    def _tell(self, ended: list[tuple[Job, Outcome]]) -> None:
        self.study.add_trials(
            (job.varying, self.axes, (o.best if o.is_done else None, o.seconds)) for job, o in ended
        )
