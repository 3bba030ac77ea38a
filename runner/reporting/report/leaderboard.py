"""The leaderboard: runs side by side, the best first, and `leaderboard.csv`, which a sweep writes.

There is one order of runs, for the table at the end of a sweep, for its file and for `report`.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.reporting.console.format import format_number
from runner.reporting.report.records import RunRecord, format_setting
from runner.rundir.json_files import write_text
from runner.rundir.readers import finite_or_none
from runner.rundir.secrets import mask_secrets
from runner.rundir.sweep_folder import LEADERBOARD_FILE

# In the order of a leaderboard. `waiting` is a job of a sweep that has not been started yet.
STATUSES = ("completed", "pruned", "running", "interrupted", "incomplete", "waiting", "failed")


@dataclass(frozen=True)
class SeedGroup:
    """Completed runs that differ only in their seed."""

    values: tuple[str, ...]  # of the columns that vary
    runs: tuple[RunRecord, ...]
    num_seeds: int = 1  # runs of these settings that differ in their seed, however they ended

    @property
    def count(self) -> str:
        """`2`, or `2 of 3` if a run has failed, was stopped, or has not ended."""
        num_runs = len(self.runs)
        return f"{num_runs} of {self.num_seeds}" if num_runs < self.num_seeds else str(num_runs)

    def metric_values(self, metric: str) -> list[float]:
        values = (finite_or_none(r.metrics.get(metric)) for r in self.runs)
        return [v for v in values if v is not None]

    def mean(self, metric: str) -> float | None:
        values = self.metric_values(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str) -> float | None:
        """Return the standard deviation of the sample (n - 1); None for a single run."""
        values = self.metric_values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def format_mean_std(self, metric: str) -> str:
        """Return `0.81230 ± 0.0045`; a single run has no deviation.

        If some of the runs have no finite value, the text says of how many it is.
        """
        mean, std = self.mean(metric), self.std(metric)
        num_finite, num_runs = len(self.metric_values(metric)), len(self.runs)
        if not any(metric in run.metrics for run in self.runs):
            return ""
        text = "nan" if mean is None else format_number(mean)
        text += "" if std is None else f" ± {std:.2g}"
        return f"{text} ({num_finite} of {num_runs})" if num_finite < num_runs > 1 else text


@dataclass(frozen=True)
class Leaderboard:
    """Runs side by side."""

    runs: tuple[RunRecord, ...]  # in the order in which they are shown
    keys: tuple[str, ...]  # settings that vary, without the seed
    headings: Mapping[str, str]  # the headings of the keys
    # the metric that runs are ranked by, and its direction: max, min or one
    monitor: tuple[str, str]
    metrics: tuple[str, ...]  # columns, the monitored metric first if any run has it
    secondary_objectives: tuple[str, ...] = ()  # further metrics that a search optimises
    # heading of the runs' labels, which are shown if no setting varies; None: they are meaningless
    label_heading: str | None = "run"
    unit: str = "runs"  # the word for runs in tables
    file: str | None = None  # the file with runs that are not shown

    @cached_property
    def seed_groups(self) -> list[SeedGroup]:
        return group_by_settings(self.runs, self.keys, *self.monitor)

    @cached_property
    def seeds_vary(self) -> bool:
        return len({str(r.seed) for r in self.runs if r.seed is not None}) > 1

    @cached_property
    def has_repeated_settings(self) -> bool:
        """Whether some settings were run with more than one seed."""
        return any(group.num_seeds > 1 for group in self.seed_groups)

    @cached_property
    def counts(self) -> str:
        """`10 completed, 2 failed`."""
        count = Counter(r.status for r in self.runs)
        order = [*STATUSES, *sorted(set(count) - set(STATUSES))]
        return ", ".join(f"{count[s]:,} {s}" for s in order if count[s])

    def label(self, group: SeedGroup) -> str:
        """Return the values of the varying settings, such as `adam, lr=0.01`."""
        return (
            ", ".join(
                value
                if key in ("model", "dataset", "optimizer")
                else f"{self.headings[key]}={value}"
                for key, value in zip(self.keys, group.values)
                if value
            )
            or group.runs[0].label
        )


def rank_runs(runs: Iterable[RunRecord], metric: str, direction: str) -> list[RunRecord]:
    """Return the runs by status, and within a status the best first.

    Runs on the Pareto front precede others of their status, and runs without the metric follow.
    """
    return sorted(runs, key=lambda run: rank_key(run, metric, direction))


def rank_key(run: RunRecord, metric: str, direction: str) -> tuple[int, bool, float]:
    """Return the place of a run's status, whether it is off a Pareto front, and its value."""
    place = STATUSES.index(run.status) if run.status in STATUSES else len(STATUSES)
    value = finite_or_none(run.metrics.get(metric))
    return place, not run.is_pareto_optimal, sort_value(value, direction)


def sort_value(value: float | None, direction: str) -> float:
    """Return a number that is smaller for a better value; infinity for none."""
    if value is None:
        return math.inf
    return {"max": -value, "min": value, "one": abs(value - 1)}[direction]


def group_by_settings(
    runs: Sequence[RunRecord], keys: Sequence[str], metric: str, direction: str
) -> list[SeedGroup]:
    """Return the completed runs, grouped where only the seed differs, the best mean first.

    A run that was repeated with the same seed counts once, since it does not show the spread, and
    one without any metric, such as a debug loop, not at all.
    """
    members: dict[tuple[str, ...], list[RunRecord]] = {}
    seeds: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        if run.is_completed and not run.metrics:
            continue
        values = tuple(format_run_settings(run, keys))
        seeds.setdefault(values, set()).add(run.signature or str(run.folder))
        if run.is_completed:
            members.setdefault(values, []).append(run)
    groups = [
        SeedGroup(values, (*newest_repetitions(same),), len(seeds[values]))
        for values, same in members.items()
    ]
    return sorted(groups, key=lambda group: sort_value(group.mean(metric), direction))


def newest_repetitions(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the newest run of each signature: the best would make means too good."""
    newest: dict[str, RunRecord] = {}
    for run in sorted(runs, key=lambda run: str(run.meta.get("created") or "")):
        newest[run.signature or str(run.folder)] = run
    return [*newest.values()]


def format_run_settings(run: RunRecord, keys: Sequence[str]) -> list[str]:
    """Return a cell for each setting, empty where the run does not have it."""
    return [format_setting(run.settings[k]) if k in run.settings else "" for k in keys]


COLUMN_SPLITS = ("test/", "tune/")  # the latter of loop=tune_lr and loop=tune_batch_size


def sweep_column_metrics(runs: Sequence[RunRecord], monitored: str) -> list[str]:
    """Return the metrics of the test split in the order of a sweep's columns, or what tuners found.

    The counterpart of the monitored metric comes first. The training loss comes last, since it is
    less informative than named metrics.
    """
    names = dict.fromkeys(m for run in runs for m in run.metrics if m.startswith(COLUMN_SPLITS))
    namesake = f"test/{monitored.partition('/')[2]}"
    return sorted(names, key=lambda m: (m != namesake, m.split("/")[1] == "loss"))


def write_leaderboard(folder: Path, board: Leaderboard) -> None:
    """Write `leaderboard.csv` whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    metric, secondary = board.monitor[0], board.secondary_objectives
    tests = [m for m in sweep_column_metrics(board.runs, metric) if m not in (metric, *secondary)]
    front = ["front"] if secondary else []
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(
        [*board.keys, "seed", "status", metric, *secondary, *front, "best_step", *tests]
        + ["step", "seconds", "error", "folder", "signature"]
    )
    for run in board.runs:
        out.writerow(
            [*format_run_settings(run, board.keys), run.seed, run.status]
            + [run.metrics.get(name) for name in (metric, *secondary)]
            + [int(run.is_pareto_optimal) for _ in front]
            + [run.best_step, *(run.metrics.get(name) for name in tests), run.step]
            + [None if run.seconds is None else round(run.seconds, 3), run.error]
            + [run.folder.name, run.signature]
        )
    write_text(folder / LEADERBOARD_FILE, mask_secrets(text.getvalue(), everything=False))
