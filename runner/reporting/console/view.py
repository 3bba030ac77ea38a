"""View: the progress, metrics and messages of a run, for a person who watches it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TextIO

from runner.errors import shell_path
from runner.reporting.console.format import (
    evaluation_table,
    fit_to_width,
    format_duration,
    format_number,
    format_speed,
    group_by_split,
    has_parts,
    result_table,
    result_tables,
)
from runner.reporting.console.surfaces import make_surface

REFRESH_EVERY_S = 0.5  # drawing the bar takes 0.8 ms, 0.2% of the time
LINE_EVERY_S = 30.0  # in a long evaluation, if there is no bar

_log = logging.getLogger("runner.reporting.console")


class View:
    """Progress, metrics and messages of one run. Rank 0 only.

    A terminal shows a bar, any other stream a line at each log point. No error is raised if the
    reader of the stream is gone.

    Args:
        stream: where output goes; None for standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._surface = make_surface(stream or sys.stdout)
        self._total_steps: int | None = None
        self._first_step: int | None = None  # where this process began; above 0 for a resumed run
        self._started_s = self._next_draw_s = 0.0
        self._facts = ""
        self._rate: float | None = None  # updates per second
        self._split, self._rows = "", 0  # of the current evaluation
        self._total_rows: int | None = None
        self._next_line_s = 0.0

    def training(self, total_steps: int | None) -> AbstractContextManager[None]:
        """Show the progress of training, including its evaluations, until the block ends."""
        self._total_steps, self._first_step, self._facts = total_steps, None, ""
        return self._until_done()

    def evaluation(self, num_rows: int | None) -> AbstractContextManager[None]:
        """Show the progress of an evaluation without training until the block ends."""
        self._total_rows = num_rows
        return self._until_done()

    def set_total_steps(self, total_steps: int) -> None:
        """Change the length of the run."""
        self._total_steps = total_steps

    def step(self, step: int) -> None:
        """Report an update; draws at most every half second."""
        now_s = time.monotonic()
        if self._first_step is None:
            self._first_step, self._started_s = step, now_s
        self._split = ""
        if now_s >= self._next_draw_s:
            self._draw_training(step, now_s)

    def log(
        self, step: int, metrics: Mapping[str, float], speed: Mapping[str, float] | None = None
    ) -> None:
        """Report train metrics and speeds since the last log point, and write them to log.txt."""
        speed = speed or {}
        self._rate = speed.get("updates_per_s") or self._rate
        rate = f"{speed['examples_per_s']:,.0f} ex/s" if "examples_per_s" in speed else ""
        loss = f"loss {format_number(metrics['loss'])}" if "loss" in metrics else ""
        self._facts = "  ".join(filter(None, (loss, rate)))
        self._draw_training(step, time.monotonic())
        rest = (format_speed(speed), self._left(step))
        _log.info("%s", self._train_line(step, metrics, *rest))
        if not self._surface.has_bar:
            # Those of single tasks would make long lines; log.txt has them.
            overall = {name: value for name, value in metrics.items() if "/" not in name}
            self._surface.write_line(self._train_line(step, overall or metrics, *rest))

    def _train_line(self, step: int, metrics: Mapping[str, float], *rest: str) -> str:
        values = [f"{name} {format_number(value)}" for name, value in metrics.items()]
        return "  ".join(filter(None, ["train", self._position(step), *values, *rest]))

    def advance_evaluation(self, split: str, rows: int, total_rows: int | None = None) -> None:
        """Report that `rows` more rows of a split have been evaluated."""
        now_s = time.monotonic()
        if split != self._split:
            self._split, self._rows = split, 0
            self._next_line_s = now_s + LINE_EVERY_S
        self._rows += rows
        if now_s < self._next_draw_s:
            return
        self._next_draw_s = now_s + REFRESH_EVERY_S
        total = total_rows or self._total_rows
        progress = f"{self._rows:,}" + (f"/{total:,}" if total else "") + " rows"
        self._surface.draw_progress(self._split, self._rows, total, progress)
        if not self._surface.has_bar and now_s >= self._next_line_s:
            self._next_line_s = now_s + LINE_EVERY_S
            self._surface.write_line(f"{split}  {progress}")

    def log_evaluation(
        self, split: str, step: int, metrics: Mapping[str, float], *, best: bool = False
    ) -> None:
        """Report the result of an evaluation, marked if it is the best so far."""
        self._split = ""
        mark = " (best so far)" if best else ""
        values = "  ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
        line = f"{split}  {self._position(step)}  {values}{mark}"
        _log.info("%s", line)
        if self._surface.has_bar or has_parts(metrics):
            title = f"{split} at step {step:,}{mark}"
            self._surface.write_table(title, evaluation_table(metrics))
        else:
            self._surface.write_line(line)

    def wait_for(self, what: str) -> None:
        """Show what the run waits for between the last evaluation and the result."""
        self._surface.draw_progress(what, 0, None, "")
        if not self._surface.has_bar:
            self._surface.write_line(f"{what} ...")

    def note(self, text: str) -> None:
        _log.info("%s", text)
        self._surface.write_line(text)

    def warn(self, text: str) -> None:
        _log.warning("%s", text)
        self._surface.warn(text)

    def show_result(
        self,
        metrics: Mapping[str, float],
        *,
        status: str,
        step: int,
        active_s: float | None = None,
        best: Mapping[str, float] | None = None,
        evaluated_step: int | None = None,
        reachable: Mapping[str, Mapping[str, float]] | None = None,
        yardstick: Mapping[str, Any] | None = None,
        remarks: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        """Report the end of a run.

        Args:
            metrics: all metrics of all splits, `split/metric[/task]` -> value.
            status: completed, interrupted or failed.
            step: the last update.
            active_s: seconds of work, over all resumes.
            best: `step` and `value` of the best evaluation.
            evaluated_step: the update whose weights validation and test were evaluated with.
            reachable: split -> metric -> the best value that any model could have, if known.
            yardstick: `name` and `metrics` of what the run is compared with.
            remarks: lines below the table, such as why a metric is undefined.
            directory: the run directory.
        """
        self._surface.end_progress()
        took = f" in {format_duration(active_s)}" if active_s is not None else ""
        best_step = f"; best at step {best['step']:,.0f}" if best else ""
        title = f"{status} at step {step:,}{took}{best_step}"
        width = self._surface.width - 2
        tables = result_tables(metrics, reachable or {}, yardstick) if metrics else {}
        if "" in tables and tables[""].width() + 2 > self._surface.width:
            tables = {}  # one table for all splits would not fit
        by_split = group_by_split(metrics)
        for split, table in (tables or dict.fromkeys(by_split)).items():
            if table is None or fit_to_width(table, width).width() > width:
                table = result_table(by_split[split], reachable or {}, yardstick)
            self._surface.write_table(split or title, table)
        if "" not in tables:
            self._surface.write_line(title)
        if best and evaluated_step is not None and not best["step"] == evaluated_step == step:
            which = "best" if evaluated_step == best["step"] else "last"
            self._surface.write_line(
                f"evaluated with the weights of step {evaluated_step:,}, the {which}"
            )
        for remark in remarks:
            self._surface.write_line(remark)
        if directory is not None:
            self._surface.write_line(f"run directory: {directory}")
            if status != "completed":
                self._surface.write_line(
                    f"go on with: python -m runner resume {shell_path(directory)}"
                )

    @contextmanager
    def _until_done(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._surface.end_progress()

    def _draw_training(self, step: int, now_s: float) -> None:
        self._next_draw_s = now_s + REFRESH_EVERY_S
        facts = "  ".join(filter(None, (self._count(step), self._facts, self._left(step))))
        self._surface.draw_progress("train", step, self._total_steps, facts)

    def _count(self, step: int) -> str:
        total = self._total_steps
        return f"{step:,}/{total:,}" if total else f"step {step:,}"

    def _position(self, step: int) -> str:
        total = f"{self._total_steps:,}" if self._total_steps else ""
        return f"step {step:>{len(total)},}" + (f"/{total}" if total else "")

    def _left(self, step: int) -> str:
        """Return the time to the last update at the speed since the last log point."""
        if not self._total_steps or self._first_step is None:
            return ""
        rate = self._rate
        if rate is None:
            elapsed_s = time.monotonic() - self._started_s
            rate = (step - self._first_step) / elapsed_s if elapsed_s > 1 else None
        return f"{format_duration((self._total_steps - step) / rate)} left" if rate else ""
