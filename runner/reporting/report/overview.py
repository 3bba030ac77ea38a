"""What a report shows of some runs: put in order once, for the terminal and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.reporting.report.columns import (
    SeedGroup,
    format_run_setting,
    group_by_settings,
    metric_columns,
    metric_direction,
    mixed_provenance,
    monitored_metric,
    short_headings,
    sort_runs,
    varying_settings,
)
from runner.reporting.report.find import RunSelection, read_leaderboard_columns
from runner.reporting.report.importance import (
    ParameterImportance,
    rank_parameters,
    seed_variance_share,
)
from runner.reporting.report.records import RunRecord


@dataclass(frozen=True)
class Overview:
    """Several runs side by side.

    keys: settings that vary; names: their short headings; metrics: the monitored one first;
    notes: what a reader must know before comparing.
    """

    title: str
    runs: tuple[RunRecord, ...]
    keys: tuple[str, ...]
    headings: dict[str, str]
    monitor: tuple[str, str]
    metrics: tuple[str, ...]
    seed_groups: tuple[SeedGroup, ...]
    importances: tuple[ParameterImportance, ...]
    seed_variance_share: float | None
    notes: tuple[str, ...]

    @cached_property
    def seeds_vary(self) -> bool:
        return len({str(r.seed) for r in self.runs if r.meta}) > 1

    @cached_property
    def has_repeated_settings(self) -> bool:
        """Whether some settings were run with more than one seed."""
        return any(len(s.runs) > 1 for s in self.seed_groups)

    @cached_property
    def failures(self) -> tuple[RunRecord, ...]:
        return tuple(
            r for r in self.runs if r.error and r.status not in ("completed", "running", "pruned")
        )

    @cached_property
    def counts(self) -> str:
        """`10 completed, 2 failed`."""
        count = Counter(r.status for r in self.runs)
        order = ["completed", "running", "interrupted", "pruned", "incomplete", "failed"]
        return ", ".join(
            f"{count[s]:,} {s}" for s in [*order, *sorted(set(count) - set(order))] if count[s]
        )

    def label(self, one: SeedGroup) -> str:
        """`adam, lr=0.01`: the values of what varies."""
        return (
            ", ".join(
                value
                if key in ("model", "dataset", "optimizer")
                else f"{self.headings[key]}={value}"
                for key, value in zip(self.keys, one.values)
                if value
            )
            or one.runs[0].label
        )


def make_overview(selection: RunSelection, title: str, *, sort: str | None = None) -> Overview:
    """Raises: UserError for a key to sort by that no run has."""
    runs = selection.runs
    monitor = sweep_objective(selection.sweeps, runs) or monitored_metric(runs)
    keys = varying_settings(runs)
    settings = group_by_settings(runs, keys, *monitor)
    notes = [*selection.problems, *mixed_provenance(runs)]
    unread = [r for r in runs if not r.meta]
    completed = sum(r.is_completed for r in runs)
    if not completed:
        notes.insert(0, "no run is finished: numbers are those of the last row each has logged")
    if len({r.monitor for r in runs if r.meta}) > 1:
        notes.append(f"the runs monitor different metrics; {monitor[0]} is taken for all")
    kinds = Counter(r.kind for r in runs if r.meta)
    if len(kinds) > 1:
        notes.append(f"trainings and evaluations together: {kinds['train']} and {kinds['eval']}")
    if unread:
        notes.append(f"{len(unread)} ended before they had begun: they have no meta.json")
    return Overview(
        title=title,
        runs=tuple(sort_runs(runs, sort, monitor)),
        keys=tuple(keys),
        headings=short_headings(keys),
        monitor=monitor,
        metrics=tuple(metric_columns(runs, monitor[0])),
        seed_groups=tuple(settings),
        importances=tuple(rank_parameters(runs, keys, monitor[0])),
        seed_variance_share=seed_variance_share(settings, monitor[0]),
        notes=tuple(notes),
    )


def sweep_objective(sweeps: Sequence[Path], runs: Sequence[RunRecord]) -> tuple[str, str] | None:
    """What the one sweep was judged by, where a search has an objective of its own."""
    if len(sweeps) != 1:
        return None
    columns = read_leaderboard_columns(sweeps[0])
    at = columns.index("status") + 1 if "status" in columns else len(columns)
    metric = columns[at] if at < len(columns) else ""
    if metric == monitored_metric(runs)[0] or not any(metric in r.metrics for r in runs):
        return None
    return metric, metric_direction(metric)


def format_run_settings(run: RunRecord, keys: Sequence[str]) -> list[str]:
    return [format_run_setting(run, key) for key in keys]
