"""Leaderboard and report in a terminal: runs, mean and spread over seeds, importance, failures."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO, cast

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from runner.reporting.console.format import format_number
from runner.reporting.console.surfaces import ignore_closed_stream
from runner.reporting.report.importance import ParameterImportance
from runner.reporting.report.leaderboard import Leaderboard, format_run_settings
from runner.reporting.report.overview import Overview
from runner.reporting.report.records import RunRecord
from runner.rundir.masked_streams import replace_controls

_ROWS_SHOWN = 40
_FAILURES_SHOWN = 20
_FILE_WIDTH = 140  # width in characters without a terminal
_ERROR_WIDTH = 30  # width in characters that is reserved for errors
_SETTINGS_IN_A_CELL = 6  # if there are more, values that most runs share are left out
_LONGEST_LABEL = 40  # characters of a folder's name that stands above the settings of its run
_LONGEST_TOLD = 30  # characters of a value that most of the runs have, where it is told
_LEAST_FOLDED = 5  # characters of a column that folds
_FOLDING_ROOM = 20  # characters beyond the longest word before a metric is left out
_FRONT_MARK = "*"
_STYLES = {
    **{"failed": "red", "incomplete": "red"},
    **{"interrupted": "yellow", "pruned": "dim", "waiting": "dim"},
}


def make_console(*, draws: bool = False, is_asked: bool = False) -> Console:
    """Return a console of the terminal's width, and a wide one for files and pipes.

    Args:
        draws: whether a view that moves the cursor is drawn on it.
        is_asked: whether the output is the purpose of the command: a full disk then is an error.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    file = cast(TextIO, _LastingOutput(draws, is_asked))
    return Console(file=file, highlight=False, width=_FILE_WIDTH if is_free else None)


class _LastingOutput:
    """Standard output that becomes silent when its reader is gone, so that a sweep continues."""

    def __init__(self, draws: bool, is_asked: bool) -> None:
        self._draws, self._may_be_full = draws, not is_asked

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> None:
        shown = text if self._draws else replace_controls(text, colours=True)
        self._do(lambda: sys.stdout.write(shown))

    def flush(self) -> None:
        self._do(lambda: sys.stdout.flush())

    def _do(self, act: Callable[[], object]) -> None:
        ignore_closed_stream(sys.stdout, act, may_be_full=self._may_be_full)


def show_overview(out: Console, overview: Overview) -> None:
    """Print the report of several runs."""
    for note in overview.notes:
        out.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    show_leaderboard(out, overview.board)
    if overview.importances:
        out.print(_importance_table(overview))
    _print_failures(out, overview.failures)
    number = len(overview.board.runs)
    print_line(out, f"{number:,} run{'s' * (number != 1)}: {overview.board.counts}")


def show_leaderboard(out: Console, board: Leaderboard, *, with_errors: bool = False) -> None:
    """Print the runs, and mean and spread over seeds where settings were repeated.

    If the terminal is too narrow for a column per setting, the settings share one; if that is not
    enough, the last metrics are left out, so that numbers are never cut.

    Args:
        with_errors: add a column of errors, cut to the room that is left for it.
    """
    metrics = list(board.metrics)
    with_errors = with_errors and any(run.error for run in board.runs)
    free = out.width - (_ERROR_WIDTH if with_errors else 0)
    fewest = 1 + len(board.secondary_objectives)
    needed, by_settings, common = _width, board, dict[str, str]()
    if board.keys and _width(out, _runs_table(board, metrics[:fewest])) > free:
        many = len(board.keys) > _SETTINGS_IN_A_CELL and len(board.runs) > 2
        most = _most_common(board) if many else None
        shown = {
            k: v
            for k, v in (most or {}).items()
            if v not in ("", "null") and len(v) <= _LONGEST_TOLD
        }
        common = {board.headings[k]: v for k, v in shown.items()}
        by_settings = _share_a_column(board, out.width * 2 // 5, most)
        board = _with_labels(by_settings) if many else by_settings
        needed = _least_width
    while len(metrics) > fewest and needed(out, _runs_table(board, metrics)) > free:
        metrics.pop()
    error_width = None
    if with_errors:
        used = needed(out, _runs_table(board, metrics))
        error_width = max(_ERROR_WIDTH, out.width - used - 3)
    _print_uncut(out, _runs_table(board, metrics, error_width))
    if common:
        settings = " ".join(f"{name}={value}" for name, value in common.items())
        print_line(out, f"unless its row says otherwise, a run has {settings}")
    num_hidden = len(board.runs) - _ROWS_SHOWN
    if num_hidden > 0:
        where = f"are only in {board.file}" if board.file else "are not shown here"
        print_line(out, f"{num_hidden:,} of {len(board.runs):,} {board.unit} {where}")
    if board.has_repeated_settings:
        _print_uncut(out, _seeds_table(by_settings, metrics[:2]))


def _most_common(board: Leaderboard) -> dict[str, str]:
    """Return the value of each setting that more than half of the runs have, if there is one."""
    rows = [format_run_settings(run, board.keys) for run in board.runs if run.settings]
    common = {k: Counter(column).most_common(1)[0] for k, column in zip(board.keys, zip(*rows))}
    return {k: value for k, (value, count) in common.items() if 2 * count > len(rows)}


def _with_labels(board: Leaderboard) -> Leaderboard:
    """Return the leaderboard with the folder of each run above its settings."""

    def join(run: RunRecord) -> str:
        settings, label = run.settings.get("settings", ""), run.label
        # a job's folder is named by its settings, which are not to be repeated
        if settings and len(label) > _LONGEST_LABEL and label.endswith(f"_{run.signature}"):
            label = f"\N{HORIZONTAL ELLIPSIS}_{run.signature}"
        return f"{label}\n  {settings}".rstrip()

    runs = tuple(replace(run, settings={"run": join(run)}) for run in board.runs)
    return replace(board, runs=runs, keys=("run",), headings={"run": "run"})


def _share_a_column(
    board: Leaderboard, longest: int, common: Mapping[str, str] | None
) -> Leaderboard:
    """Return the leaderboard with all settings of a run as one text, which folds at its spaces.

    A value is put below its key if both are longer than `longest` characters. Values that are
    `common` are left out; None: those that are null.
    """

    def join(run: RunRecord) -> Mapping[str, str]:
        cells = list(zip(board.keys, format_run_settings(run, board.keys)))
        if common is not None:  # a run without a setting that most have differs by that
            cells = [(k, v or "null" if k in common else v) for k, v in cells]
            shown = [(k, v) for k, v in cells if k not in common or v != (common[k] or "null")]
        else:
            shown = [(k, v) for k, v in cells if v not in ("", "null")] or cells
        named = [f"{board.headings[k]}={v.replace(', ', ',')}" for k, v in shown if v]
        named = [x if len(x) <= longest else x.replace("=", "=\n  ", 1) for x in named]
        return {"settings": " ".join(named)} if run.settings else {}

    runs = tuple(replace(run, settings=join(run)) for run in board.runs)
    return replace(board, runs=runs, keys=("settings",), headings={"settings": "settings"})


def _runs_table(
    board: Leaderboard, metrics: Sequence[str], error_width: int | None = None
) -> Table:
    """Return the table of runs; with no `error_width` it has no column of errors."""
    labels = [board.label_heading] if board.label_heading and not board.keys else []
    table = make_table("", [*(board.headings[key] for key in board.keys), *labels])
    if board.seeds_vary:
        table.add_column("seed")
    table.add_column("status", no_wrap=True)
    if board.secondary_objectives:
        table.add_column("front", justify="center")
    for name in [*metrics, "step", "seconds"]:
        table.add_column(name, justify="right", no_wrap=True)
    if error_width is not None:
        table.add_column("error", no_wrap=True, max_width=error_width)
    for run in _select_rows(board.runs):
        cells = _cells(board, run, metrics)
        cells += [run.error or ""] if error_width is not None else []
        table.add_row(*map(Text, cells), style=_STYLES.get(run.status))
    return table


def _cells(board: Leaderboard, run: RunRecord, metrics: Sequence[str]) -> list[str]:
    cells = format_run_settings(run, board.keys)
    if not board.keys:
        cells = [run.label] if board.label_heading else []
    elif not run.settings:
        cells[0] = run.label
    cells += ["" if run.seed is None else str(run.seed)] if board.seeds_vary else []
    cells.append(run.status)
    if board.secondary_objectives:
        cells.append(_FRONT_MARK if run.is_pareto_optimal else "")
    cells += [format_number(run.metrics[m]) if m in run.metrics else "" for m in metrics]
    cells.append("" if run.step is None else f"{run.step:,}")
    return [*cells, "" if run.seconds is None else f"{run.seconds:,.1f}"]


def _select_rows(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the first runs and some failed ones, since their errors are of interest."""
    if len(runs) <= _ROWS_SHOWN:
        return list(runs)
    failed = [i for i, run in enumerate(runs) if run.status == "failed"][: _ROWS_SHOWN // 3]
    others = [i for i in range(len(runs)) if i not in failed][: _ROWS_SHOWN - len(failed)]
    return [runs[i] for i in sorted(others + failed)]


def _seeds_table(board: Leaderboard, metrics: Sequence[str]) -> Table:
    title = "\nover seeds: mean ± standard deviation"
    table = make_table(title, [board.headings[key] for key in board.keys])
    for name in [board.unit, *metrics]:
        table.add_column(name, justify="right", no_wrap=True)
    for group in board.seed_groups[:_ROWS_SHOWN]:
        cells = [*group.values, group.count, *map(group.format_mean_std, metrics)]
        table.add_row(*map(Text, cells))
    return table


def _importance_table(overview: Overview) -> Table:
    shares = [(_with_others(s), s.variance_share) for s in overview.importances]
    if overview.seed_variance_share is not None:
        shares.append(("seeds (same settings)", overview.seed_variance_share))
    rows = [(name, f"{share:.1%}", "━" * round(30 * share)) for name, share in shares]
    title = f"\nimportance: share of the variance of {overview.board.monitor[0]}"
    return make_table(title, ["parameter", "share", ""], rows, right=["share"])


def _with_others(parameter: ParameterImportance) -> str:
    others = parameter.others
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return parameter.key + (f" (with {', '.join(others[:2])}{more})" if others else "")


def _print_failures(out: Console, failures: Sequence[RunRecord]) -> None:
    for run in failures[:_FAILURES_SHOWN]:
        text = f"{run.status}: {run.label}: {run.error}"
        out.print(Text(text, style=_STYLES.get(run.status, "")), soft_wrap=True)
    if len(failures) > _FAILURES_SHOWN:
        print_line(out, f"and {len(failures) - _FAILURES_SHOWN} more")


def make_table(
    title: str,
    header: Iterable[str] = (),
    rows: Iterable[Sequence[str]] = (),
    right: Collection[str] = (),
) -> Table:
    """Return a table without borders, whose columns fold.

    Args:
        title: above it; empty for none.
        header: of its first columns.
        rows: of these columns, as plain text.
        right: headings of the columns that are aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold")
    table.title, table.title_justify = title or None, "left"
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        # As plain text: Rich reads square brackets as markup, and lists of values are full of them.
        table.add_row(*map(Text, row))
    return table


def _width(out: Console, table: Table) -> int:
    """Return the columns of text that a table takes when nothing is folded or cut."""
    return Measurement.get(out, out.options.update(width=10_000), table).maximum


def _least_width(out: Console, table: Table) -> int:
    """Return the width of a table that folds without cutting a word, with some room to spare."""
    return Measurement.get(out, out.options.update(width=10_000), table).minimum + _FOLDING_ROOM


def _print_uncut(out: Console, table: Table) -> None:
    """Print a table, wider than the terminal if numbers or settings would be cut otherwise."""
    folding = [(c, c.max_width) for c in table.columns if not c.no_wrap or c.max_width is not None]
    for column, _ in folding:
        column.max_width = _LEAST_FOLDED
    least = _width(out, table)
    for column, max_width in folding:
        column.max_width = max_width
    table.width = least + _FOLDING_ROOM if least > out.width else None
    out.print(table, crop=False)


def print_line(out: Console, text: str) -> None:
    """Print text unchanged: without markup, and without line breaks by the console."""
    out.print(Text(text), soft_wrap=True)
