"""The jobs of a sweep as a leaderboard."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from runner.reporting.report.columns import short_headings
from runner.reporting.report.leaderboard import Leaderboard, rank_runs, sweep_test_metrics
from runner.reporting.report.records import RunRecord
from runner.rundir.sweep_folder import LEADERBOARD_FILE
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome

_TEST_COLUMNS_SHOWN = 3


def make_leaderboard(
    plan: SweepPlan,
    results: Iterable[tuple[SweepJob, Path, Outcome]],
    pareto_front: Collection[str] = (),
) -> Leaderboard:
    """Return the jobs of a sweep, the best first.

    Args:
        plan: the sweep.
        results: each job with its folder and outcome.
        pareto_front: keys of the jobs of a Pareto front.
    """
    runs = [
        RunRecord(
            folder=folder,
            label=folder.name,
            status=outcome.status,
            signature=job.signature,
            seed=job.seed,
            settings=job.varying,
            step=outcome.step,
            metrics={**outcome.test_metrics, **_objective_values(plan, outcome)},
            best_step=outcome.best_step,
            seconds=outcome.seconds,
            error=outcome.error,
            is_pareto_optimal=job.key in pareto_front,
        )
        for job, folder, outcome in results
    ]
    keys = tuple(key for key in plan.varying if key != "seed")
    tests = sweep_test_metrics(runs, plan.metric)[:_TEST_COLUMNS_SHOWN]
    return Leaderboard(
        runs=tuple(rank_runs(runs, plan.metric, plan.direction)),
        keys=keys,
        headings=short_headings(keys),
        monitor=(plan.metric, plan.direction),
        metrics=tuple(dict.fromkeys([plan.metric, *plan.secondary_objectives, *tests])),
        secondary_objectives=tuple(plan.secondary_objectives),
        label_heading=None,
        unit="jobs",
        file=LEADERBOARD_FILE,
    )


def _objective_values(plan: SweepPlan, outcome: Outcome) -> dict[str, float]:
    values = {plan.metric: outcome.best, **outcome.secondary_values}
    return {name: value for name, value in values.items() if value is not None}
