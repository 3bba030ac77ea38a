"""The report in a terminal: the table, mean and spread over seeds, importance, failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from runner.reporting.console.format import format_duration, format_number
from runner.reporting.report.overview import Overview, format_run_settings
from runner.reporting.report.records import RunRecord

_ROWS_SHOWN = 40
_FAILURES_SHOWN = 20
_FILE_WIDTH = 140  # columns of text, where no terminal limits them
_STYLES = {"failed": "red", "incomplete": "red", "interrupted": "yellow", "pruned": "yellow"}


def make_console() -> Console:
    free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_FILE_WIDTH if free else None)


def show_overview(out: Console, overview: Overview) -> None:
    """As much of the table as the terminal has room for: metrics to the right go first."""
    for note in overview.notes:
        out.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    metrics = list(overview.metrics)
    while len(metrics) > 1 and _width(out, _runs(overview, metrics)) > out.width:
        metrics.pop()
    out.print(_runs(overview, metrics))
    if len(overview.runs) > _ROWS_SHOWN:
        _say(out, f"the first {_ROWS_SHOWN} of {len(overview.runs):,} runs")
    if overview.has_repeated_settings:
        out.print(_seeds(overview, metrics))
    if overview.importances:
        out.print(_importance(overview))
    _failures(out, overview)
    _say(out, f"{len(overview.runs):,} runs: {overview.counts}")


def _runs(view: Overview, metrics: Sequence[str]) -> Table:
    table = _table("")
    for key in view.keys:
        table.add_column(view.headings[key], overflow="fold")
    if not view.keys:
        table.add_column("run", overflow="fold")
    if view.seeds_vary:
        table.add_column("seed")
    table.add_column("status", no_wrap=True)
    for name in [*metrics, "step", "time"]:
        table.add_column(name, justify="right", no_wrap=True)
    for run in view.runs[:_ROWS_SHOWN]:
        table.add_row(*map(Text, _cells(view, run, metrics)), style=_STYLES.get(run.status))
    return table


def _cells(view: Overview, run: RunRecord, metrics: Sequence[str]) -> list[str]:
    cells = format_run_settings(run, view.keys) if view.keys else [run.label]
    if view.keys and not run.meta:
        cells[0] = run.label
    cells += [str(run.seed) if run.meta else ""] if view.seeds_vary else []
    cells.append(run.status)
    cells += [format_number(run.metrics[m]) if m in run.metrics else "" for m in metrics]
    cells.append("" if run.step is None else f"{run.step:,}")
    return [*cells, "" if run.seconds is None else format_duration(run.seconds)]


def _seeds(view: Overview, metrics: Sequence[str]) -> Table:
    table = _table("\nover seeds: mean ± standard deviation")
    for key in view.keys:
        table.add_column(view.headings[key], overflow="fold")
    for name in ["runs", *metrics[:2]]:
        table.add_column(name, justify="right", no_wrap=True)
    for one in view.seed_groups[:_ROWS_SHOWN]:
        cells = [*one.values, str(len(one.runs))]
        for name in metrics[:2]:
            mean, spread = one.mean(name), one.std(name)
            text = "" if mean is None else format_number(mean)
            cells.append(text + ("" if spread is None else f" ± {spread:.2g}"))
        table.add_row(*map(Text, cells))
    return table


def _importance(view: Overview) -> Table:
    table = _table(f"\nimportance: share of the variance of {view.monitor[0]}")
    for name, justify in (("parameter", "left"), ("share", "right"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    shares = [(s.key, s.variance_share) for s in view.importances]
    if view.seed_variance_share is not None:
        shares.append(("seeds (same settings)", view.seed_variance_share))
    for name, share in shares:
        table.add_row(Text(name), f"{share:.1%}", "━" * round(30 * share))
    return table


def _failures(out: Console, view: Overview) -> None:
    for run in view.failures[:_FAILURES_SHOWN]:
        text = f"{run.status}: {run.label}: {run.error}"
        out.print(Text(text, style=_STYLES.get(run.status, "")), soft_wrap=True)
    if len(view.failures) > _FAILURES_SHOWN:
        _say(out, f"and {len(view.failures) - _FAILURES_SHOWN} more")


def _table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )


def _width(out: Console, table: Table) -> int:
    return Measurement.get(out, out.options.update(width=10_000), table).maximum


def _say(out: Console, text: str) -> None:
    out.print(Text(text), soft_wrap=True)
