"""What a sweep came to: `leaderboard.csv` and the tables at the end."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from runner.rundir.json_files import write_text
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome

LEADERBOARD_FILE = "leaderboard.csv"
_ROWS_SHOWN = 30  # in the terminal; the file has them all
_TEST_COLUMNS_SHOWN = 3
_ERROR_WIDTH = 30  # columns of text that are kept free for errors


@dataclass(frozen=True)
class LeaderboardRow:
    job: SweepJob
    folder: str
    outcome: Outcome
    is_pareto_optimal: bool = False  # of a search by several objectives: no other is better in all


def rank_rows(rows: Iterable[LeaderboardRow], direction: str) -> list[LeaderboardRow]:
    """Best first by the monitored metric; jobs without one behind, failed ones last."""
    sign = -1 if direction == "max" else 1
    order = {"completed": 0, "pruned": 1, "interrupted": 2, "waiting": 3, "failed": 4}

    def key(row: LeaderboardRow) -> tuple[int, bool, bool, float]:
        best = row.outcome.best
        return (
            order.get(row.outcome.status, 4),
            not row.is_pareto_optimal,
            best is None,
            0.0 if best is None else sign * best,
        )

    return sorted(rows, key=key)


def write_csv(path: Path, rows: Sequence[LeaderboardRow], plan: SweepPlan) -> None:
    """Replaces the file whole. Raises: OSError."""
    tests = _test_metrics(rows, plan.metric)
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    varying = [k for k in plan.varying if k != "seed"]
    out.writerow(
        [*varying, "seed", "status", plan.metric, *plan.secondary_objectives]
        + [
            *(["front"] if plan.secondary_objectives else []),
            "best_step",
            *tests,
            "step",
            "seconds",
        ]
        + ["error", "folder", "signature"]
    )
    for row in rows:
        job, o = row.job, row.outcome
        out.writerow(
            [job.varying.get(k, "") for k in varying]
            + [
                job.seed,
                o.status,
                o.best,
                *(o.secondary_values.get(n) for n in plan.secondary_objectives),
            ]
            + [*([int(row.is_pareto_optimal)] if plan.secondary_objectives else []), o.best_step]
            + [o.metrics.get(t) for t in tests]
            + [o.step, None if o.seconds is None else round(o.seconds, 3)]
            + [o.error, row.folder, job.signature]
        )
    write_text(path, text.getvalue())


def show_leaderboard(console: Console, rows: Sequence[LeaderboardRow], plan: SweepPlan) -> None:
    """The leaderboard, and mean and spread over seeds where seeds vary."""
    tests = _test_metrics(rows, plan.metric)[:_TEST_COLUMNS_SHOWN]
    # On a narrow terminal a few whole numbers say more than many cut ones.
    with_errors = any(r.outcome.error for r in rows)
    free = console.width - (_ERROR_WIDTH if with_errors else 0)
    while tests and _width(console, _table(rows, plan, tests, with_errors=False)) > free:
        tests = tests[:-1]
    used = _width(console, _table(rows, plan, tests, with_errors=False))
    room = max(_ERROR_WIDTH, console.width - used - 3) if with_errors else None
    console.print(_table(rows, plan, tests, with_errors=with_errors, error_width=room))
    if len(rows) > _ROWS_SHOWN:
        console.print(
            f"{len(rows) - _ROWS_SHOWN} of {len(rows)} jobs are only in {LEADERBOARD_FILE}"
        )
    over_seeds = _over_seeds(rows, plan, tests) if "seed" in plan.varying else None
    if over_seeds is not None:
        console.print(over_seeds)


def _table(
    rows: Sequence[LeaderboardRow],
    plan: SweepPlan,
    tests: Sequence[str],
    *,
    with_errors: bool,
    error_width: int | None = None,
) -> Table:
    varying = [k for k in plan.varying if k != "seed"]
    with_seed = len({str(r.job.seed) for r in rows}) > 1
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for name in [*varying, *(["seed"] if with_seed else [])]:
        table.add_column(name, overflow="fold")
    table.add_column("status", no_wrap=True)
    if plan.secondary_objectives:
        table.add_column("front", justify="center")
    for name in [plan.metric, *plan.secondary_objectives, *tests, "step", "seconds"]:
        table.add_column(name, justify="right", no_wrap=True)
    if with_errors:
        table.add_column(
            "error", no_wrap=True, max_width=error_width
        )  # cut where there is no room; told in full below
    for row in _select_rows(rows):
        job, o = row.job, row.outcome
        cells = [job.varying.get(k, "") for k in varying]
        cells += [str(job.seed)] if with_seed else []
        cells += [
            o.status,
            *([_MARK if row.is_pareto_optimal else ""] if plan.secondary_objectives else []),
        ]
        cells += [
            _format_value(o.best),
            *(_format_value(o.secondary_values.get(n)) for n in plan.secondary_objectives),
        ]
        cells += [_format_value(o.metrics.get(t)) for t in tests]
        cells += ["" if o.step is None else f"{o.step:,}"]
        cells += ["" if o.seconds is None else f"{o.seconds:,.1f}"]
        cells += [o.error or ""] if with_errors else []
        table.add_row(*map(_plain, cells), style=_STYLES.get(o.status))
    return table


def _width(console: Console, table: Table) -> int:
    """Columns of text that it takes when nothing is folded or cut."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


_MARK = "*"
_STYLES = {"failed": "red", "pruned": "dim", "interrupted": "yellow", "waiting": "dim"}


def _select_rows(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """The first and, of those behind, the ones that failed: why is what a person looks for."""
    if len(rows) <= _ROWS_SHOWN:
        return list(rows)
    failed = [r for r in rows if r.outcome.status == "failed"][: _ROWS_SHOWN // 3]
    shown = [r for r in rows if r not in failed][: _ROWS_SHOWN - len(failed)]
    return shown + failed


def _over_seeds(
    rows: Sequence[LeaderboardRow], plan: SweepPlan, tests: Sequence[str]
) -> Table | None:
    """Mean ± standard deviation (n - 1) of completed jobs that differ only in their seed."""
    varying = [k for k in plan.varying if k != "seed"]
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for row in rows:
        if row.outcome.status == "completed":
            key = tuple(row.job.varying.get(k, "") for k in varying)
            groups.setdefault(key, []).append(row.outcome)
    if not any(len(outcomes) > 1 for outcomes in groups.values()):
        return None
    sign = -1 if plan.direction == "max" else 1

    def rank(outcomes: Sequence[Outcome]) -> tuple[bool, float]:
        best = [o.best for o in outcomes if o.best is not None]
        return not best, sign * statistics.fmean(best) if best else 0.0

    table = Table(
        title="\nover seeds: mean ± standard deviation",
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for name in varying:
        table.add_column(name, overflow="fold")
    for name in ["jobs", plan.metric, *tests[:1]]:
        table.add_column(name, justify="right", no_wrap=True)
    for key, outcomes in sorted(groups.items(), key=lambda item: rank(item[1]))[:_ROWS_SHOWN]:
        cells = [format_mean_std([o.best for o in outcomes])]
        cells += [format_mean_std([o.metrics.get(t) for o in outcomes]) for t in tests[:1]]
        table.add_row(*map(_plain, [*key, str(len(outcomes)), *cells]))
    return table


def format_mean_std(values: Iterable[float | None]) -> str:
    """`0.8123 ± 0.0045`; one value alone has no spread."""
    there = [v for v in values if v is not None]
    if not there:
        return ""
    mean = _format_value(statistics.fmean(there))
    return f"{mean} ± {statistics.stdev(there):.2g}" if len(there) > 1 else mean


def _test_metrics(rows: Sequence[LeaderboardRow], monitored: str) -> list[str]:
    """Test metrics that any job has: the monitored metric's namesake first, the loss that was
    trained last, for it says less than the metrics with names of their own."""
    names: dict[str, None] = dict.fromkeys(m for row in rows for m in row.outcome.metrics)
    namesake = f"test/{monitored.partition('/')[2]}"
    return sorted(names, key=lambda m: (m != namesake, m == "test/loss"))


def _format_value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.5f}" if 1e-3 <= abs(value) < 10 else f"{value:.5g}"


def _plain(text: str) -> Text:
    """As it is: Rich reads square brackets as markup, and lists of values are full of them."""
    return Text(text)


def format_status_counts(statuses: Mapping[str, int]) -> str:
    """`3 completed, 1 failed`."""
    order = ("completed", "pruned", "failed", "interrupted", "waiting")
    return ", ".join(f"{statuses[s]} {s}" for s in order if statuses.get(s)) or "no jobs"
