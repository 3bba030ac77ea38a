"""Shows a running sweep: as a live table, or as a line for each event in a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runner.reporting.console.format import format_duration
from runner.reporting.report.columns import short_headings
from runner.sweep.database import TryResult
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import DONE_STATUSES, Outcome, find_ranking_metric

_RUNNING_SHOWN = 12
_LONGEST_NAME = 60  # most characters of settings in the name of a job
_DRAW_EVERY_S = 0.5
_LINE_EVERY_S = 10  # while a large grid is checked, where there is no terminal


class LiveView:
    """A table that stays up to date in a terminal, and lines elsewhere.

    It is drawn by the sweep's own loop: threads and forks do not go well together.
    """

    def __init__(
        self, console: Console, plan: SweepPlan, done: Sequence[tuple[SweepJob, Outcome]] = ()
    ) -> None:
        """Count the jobs that are done already.

        Args:
            done: jobs that were done before; each once for every trial that has chosen it.
        """
        self.console, self.plan = console, plan
        self.total = plan.num_jobs
        self.counts = {"completed": 0, "failed": 0, "pruned": 0, "interrupted": 0}
        self.running: dict[str, tuple[SweepJob, Path, float]] = {}
        self._metric: str | None = None  # that ranks; None: no job has it yet
        self.best: tuple[float, SweepJob] | None = None
        self.seconds: list[float] = []  # of tries that ended since this start
        self._live: Live | None = None
        self._last_drawn = 0.0
        self._stopping = False
        self._headings = short_headings(plan.varying)
        for job, outcome in done:
            self._count_known(job, outcome)

    def __enter__(self) -> LiveView:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, job: SweepJob, folder: Path) -> None:
        self.running[job.key] = (job, folder, time.monotonic())
        if self._live is None:
            name, settings = self._name(job), self._settings(job)
            settings = "" if name == settings else f": {settings}"
            self._print(f"{self._count()} started {name}{settings}  ({folder})")

    def retried(self, job: SweepJob, try_result: TryResult, tries_left: int) -> None:
        self.running.pop(job.key, None)
        self._print(
            f"{self._count()} {self._name(job)}: {try_result.error}; tries left: {tries_left}"
        )

    def known(self, job: SweepJob, outcome: Outcome) -> None:
        """Show a job that had ended before it was chosen."""
        self._count_known(job, outcome)
        if self._live is None:
            self._print(f"{self._count()} {outcome.status} before: {self._name(job)}")

    def ended(
        self, job: SweepJob, try_result: TryResult, outcome: Outcome, num_trials: int = 1
    ) -> None:
        """Show the end of a job, which several trials of a search may have chosen."""
        self.running.pop(job.key, None)
        self.counts[try_result.status] += num_trials
        if not self._stopping:
            self.seconds.append(try_result.seconds)
        self._compare(job, outcome)
        parts = [f"{self._count()} {try_result.status} {self._name(job)}"]
        value = outcome.ranking_value(self._metric) if self._metric else None
        if value is not None:
            parts.append(f"{self._metric} {value:.5g}")
        parts.append(f"{try_result.seconds:.1f} s")
        if outcome.error:
            parts.append(outcome.error)
        if self._live is None:
            parts += [self._best(), self._left()]
        # On a terminal the table shows successes; only a failure gets a permanent line.
        if self._live is None or try_result.status not in DONE_STATUSES:
            self._print("  ".join(p for p in parts if p))

    def stopping(self, running: int, is_immediate: bool) -> None:
        self.seconds.clear()  # no remaining time is estimated from here on
        self._stopping = True
        if is_immediate:
            self._print("stopping at once")
        elif running:
            self._print(
                f"stopping: running jobs ({running}) save first; another Ctrl-C stops at once"
            )

    def refresh(self) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._last_drawn >= _DRAW_EVERY_S:
            self._last_drawn = now
            self._live.update(self._table(), refresh=True)

    def _count_known(self, job: SweepJob, outcome: Outcome) -> None:
        self.counts[outcome.status] += 1
        self._compare(job, outcome)

    def _compare(self, job: SweepJob, outcome: Outcome) -> None:
        sign = 1 if self.plan.direction == "max" else -1
        metric = find_ranking_metric(self.plan, [outcome], self._metric)
        if metric != self._metric:  # values of the other one are not comparable
            self._metric, self.best = metric, None
        value = outcome.ranking_value(metric) if metric and outcome.is_completed else None
        if value is not None and (self.best is None or sign * value > sign * self.best[0]):
            self.best = (value, job)

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def _settings(self, job: SweepJob) -> str:
        texts = (f"{self._headings.get(k, k)}={v}" for k, v in job.varying.items())
        return " ".join(texts) or job.label

    def _name(self, job: SweepJob) -> str:
        """Return the job's settings, or if they are long the signature that ends its folder."""
        settings = self._settings(job)
        return settings if len(settings) <= _LONGEST_NAME else job.short_name

    def _count(self) -> str:
        return f"[{sum(self.counts.values())}/{self.total}]"

    def _best(self) -> str:
        if self.best is None:
            return ""
        return f"best so far {self.best[0]:.5g} ({self._name(self.best[1])})"

    def _left(self) -> str:
        waiting = self.total - sum(self.counts.values()) - len(self.running)
        if not self.seconds or (waiting <= 0 and not self.running):
            return ""
        mean_s = sum(self.seconds) / len(self.seconds)
        now = time.monotonic()
        running_s = sum(max(0.0, mean_s - (now - began)) for _, _, began in self.running.values())
        left_s = (waiting * mean_s + running_s) / self.plan.launcher.slots
        return f"about {format_duration(left_s)} left"

    def _table(self) -> RenderableType:
        ended = sum(self.counts.values())
        states = [f"{len(self.running)} running", f"{self.counts['completed']} done"]
        states += [
            f"{self.counts[s]} {s}" for s in ("failed", "pruned", "interrupted") if self.counts[s]
        ]
        states += [f"{max(0, self.total - ended - len(self.running))} waiting"]
        line = "  ".join(p for p in (", ".join(states), self._best(), self._left()) if p)
        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for job, _, began in list(self.running.values())[:_RUNNING_SHOWN]:
            table.add_row(
                Text(format_duration(now - began), style="cyan"), Text(self._settings(job))
            )
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(1, self.total), completed=ended, width=20), Text(line))
        return Group(head, table)


class CheckProgress:
    """Shows how far the check of a large grid has come, before anything starts."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_shown = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        every_s = 0.2 if self.console.is_terminal else _LINE_EVERY_S
        if done and now - self._last_shown >= every_s:
            self._last_shown = now
            end = "\r" if self.console.is_terminal else "\n"
            self.console.print(f"checking job {done:,} of {total:,}", end=end)
