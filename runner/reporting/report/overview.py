"""What a report shows of some runs: put in order once, for the terminal and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.reporting.report.columns import (
    Settings,
    by_settings,
    cell,
    direction_of,
    headings,
    metric_columns,
    mixed,
    monitored,
    sorted_by,
    varying,
)
from runner.reporting.report.find import Found, leaderboard_columns
from runner.reporting.report.importance import Share, importance, of_seeds
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
    names: dict[str, str]
    monitor: tuple[str, str]
    metrics: tuple[str, ...]
    settings: tuple[Settings, ...]
    shares: tuple[Share, ...]
    seeds_share: float | None
    notes: tuple[str, ...]

    @cached_property
    def seeds_vary(self) -> bool:
        return len({str(r.seed) for r in self.runs if r.meta}) > 1

    @cached_property
    def is_repeated(self) -> bool:
        """Whether some settings were run with more than one seed."""
        return any(len(s.runs) > 1 for s in self.settings)

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

    def label(self, one: Settings) -> str:
        """`adam, lr=0.01`: the values of what varies."""
        return (
            ", ".join(
                value if key in ("model", "dataset", "optimizer") else f"{self.names[key]}={value}"
                for key, value in zip(self.keys, one.values)
                if value
            )
            or one.runs[0].label
        )


def overview(found: Found, title: str, *, sort: str | None = None) -> Overview:
    """Raises: UserError for a key to sort by that no run has."""
    runs = found.runs
    monitor = objective(found.sweeps, runs) or monitored(runs)
    keys = varying(runs)
    settings = by_settings(runs, keys, *monitor)
    notes = [*found.problems, *mixed(runs)]
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
        runs=tuple(sorted_by(runs, sort, monitor)),
        keys=tuple(keys),
        names=headings(keys),
        monitor=monitor,
        metrics=tuple(metric_columns(runs, monitor[0])),
        settings=tuple(settings),
        shares=tuple(importance(runs, keys, monitor[0])),
        seeds_share=of_seeds(settings, monitor[0]),
        notes=tuple(notes),
    )


def objective(sweeps: Sequence[Path], runs: Sequence[RunRecord]) -> tuple[str, str] | None:
    """What the one sweep was judged by, where a search has an objective of its own."""
    if len(sweeps) != 1:
        return None
    columns = leaderboard_columns(sweeps[0])
    at = columns.index("status") + 1 if "status" in columns else len(columns)
    metric = columns[at] if at < len(columns) else ""
    if metric == monitored(runs)[0] or not any(metric in r.metrics for r in runs):
        return None
    return metric, direction_of(metric)


def values_of(run: RunRecord, keys: Sequence[str]) -> list[str]:
    return [cell(run, key) for key in keys]
