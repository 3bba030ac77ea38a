"""Gathers the content of a report on several runs, for the terminal and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from runner.reporting.report.columns import (
    metric_columns,
    metric_direction,
    mixed_provenance,
    monitored_metric,
    short_headings,
    sort_runs,
    varying_settings,
)
from runner.reporting.report.find import RunSelection
from runner.reporting.report.importance import (
    ParameterImportance,
    rank_parameters,
    runs_of_same_data,
    seed_variance_share,
)
from runner.reporting.report.leaderboard import Leaderboard, group_by_settings
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import parse_number
from runner.rundir.sweep_folder import (
    read_leaderboard,
    read_secondary_objectives,
    read_sweep_direction,
    read_sweep_metric,
)


@dataclass(frozen=True)
class Overview:
    """Several runs side by side, with notes on them."""

    title: str  # of the page
    board: Leaderboard  # the runs
    # the share of the monitored metric's variance of each setting, the largest first
    importances: tuple[ParameterImportance, ...]
    seed_variance_share: float | None  # the share that remains between runs of the same settings
    notes: tuple[str, ...]  # notes to read before comparing the runs

    @cached_property
    def failures(self) -> list[RunRecord]:
        ended_well = ("completed", "running", "pruned")
        return [r for r in self.board.runs if r.error and r.status not in ended_well]


def make_overview(selection: RunSelection, title: str, *, sort: str | None = None) -> Overview:
    """Gather what is shown of several runs.

    Args:
        sort: the key by which runs are sorted; None: by the monitored metric.

    Raises:
        UserError: if no run has the key to sort by.
    """
    runs = selection.runs
    sweep = selection.sweeps[0] if len(selection.sweeps) == 1 else None
    secondary = read_secondary_objectives(sweep) if sweep else []
    if sweep and secondary:  # also the first may be no metric of a result, such as active_s
        objectives = [name for name in (read_sweep_metric(sweep), *secondary) if name]
        runs = _mark_front(runs, read_leaderboard(sweep), objectives)
    monitor = sweep_objective(selection.sweeps, runs) or monitored_metric(runs)
    keys = varying_settings(runs)
    sorted_by = [sort] if sort and any(sort in r.metrics for r in runs) else []
    first, *others = metric_columns(runs, monitor[0]) or [monitor[0]]
    board = Leaderboard(
        runs=tuple(sort_runs(runs, sort, monitor)),
        keys=tuple(keys),
        headings=short_headings(keys),
        monitor=monitor,
        metrics=tuple(dict.fromkeys([*sorted_by, first, *secondary, *others])),
        secondary_objectives=tuple(secondary),
    )
    comparable = runs_of_same_data(runs)
    groups = group_by_settings(comparable, keys, *monitor)
    return Overview(
        title=title,
        board=board,
        importances=tuple(rank_parameters(comparable, keys, monitor[0])),
        seed_variance_share=seed_variance_share(groups, monitor[0]),
        notes=(*_notes(runs, monitor[0]), *selection.problems, *mixed_provenance(runs)),
    )


def _mark_front(
    runs: Sequence[RunRecord], rows: Mapping[str, Mapping[str, str]], objectives: Sequence[str]
) -> tuple[RunRecord, ...]:
    """Return the jobs of a search with their place on its Pareto front, and all its objectives."""
    marked = []
    for run in runs:
        row = rows.get(run.folder.name, {})
        values = {name: parse_number(row.get(name)) for name in objectives}
        measured = {name: value for name, value in values.items() if value is not None}
        on_front = row.get("front") == "1"
        marked.append(replace(run, is_pareto_optimal=on_front, metrics={**measured, **run.metrics}))
    return tuple(marked)


def _notes(runs: Sequence[RunRecord], monitored: str) -> list[str]:
    notes = []
    started = [r for r in runs if r.meta]
    if not any(r.is_completed for r in runs):
        notes.append("no run is finished: numbers are those that each has logged so far")
    if len({r.monitor for r in started}) > 1:
        notes.append(f"the runs monitor different metrics; {monitored} is used for all")
    num_data = len({str(r.settings.get("data")) for r in runs if r.is_completed})
    if num_data > 1:
        notes.append(
            f"the runs have {num_data} different datasets, whose metrics cannot be compared; the "
            "importance of settings is computed from the runs of one of them "
            f"({len(runs_of_same_data(runs)):,})"
        )
    kinds = Counter(r.kind for r in started)
    if len(kinds) > 1:
        notes.append(
            f"trainings ({kinds['train']}) and evaluations ({kinds['eval']}) are shown together"
        )
    if len(started) < len(runs):
        num_unstarted = len(runs) - len(started)
        clause = "it had begun: it has" if num_unstarted == 1 else "they had begun: they have"
        notes.append(f"{num_unstarted:,} ended before {clause} no meta.json")
    return notes


def sweep_objective(sweeps: Sequence[Path], runs: Sequence[RunRecord]) -> tuple[str, str] | None:
    """Return the metric and direction of the one sweep, if its search has its own objective."""
    metric = read_sweep_metric(sweeps[0]) if len(sweeps) == 1 else None
    if metric is None or metric == monitored_metric(runs)[0]:
        return None
    if not any(metric in r.metrics for r in runs):
        return None
    return metric, read_sweep_direction(sweeps[0], metric) or metric_direction(metric, runs)
