"""The common part of both tuners: the search, its report, its file, and the training after it.

The result of a search is kept in the run directory and applied to the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.reporting.console.chart import whole_page
from runner.reporting.console.format import TextTable, bar
from runner.rundir.json_files import read_json, write_json, write_text
from runner.rundir.run_files import TUNED_FILE
from runner.rundir.secrets import mask_secrets
from runner.training.job import Job, Result
from runner.training.loops.rollback import restored_after
from runner.training.loops.session import run_and_report, start_trackers
from runner.training.loops.start import start_weights
from runner.training.loops.train import train
from runner.training.steps import rows_per_update, updates_per_epoch

TunedValues = Mapping[str, Any]  # name of a setting or a measurement -> its value


@dataclass(frozen=True)
class TrialRow:
    """A row of the table of trials."""

    cells: Sequence[str]
    value: float  # the value of the row's bar
    mark: str = ""  # such as `chosen`


@dataclass(frozen=True)
class TuningReport:
    """The report of a search: a table of trials with bars in the log, and a page with curves."""

    name: str  # of the loop, and of the page
    header: Sequence[str]
    rows: Sequence[TrialRow]
    largest: float  # value of the longest bar
    end: str  # why the search ended, and what it chose
    title: str
    x_title: str
    y_axis: Mapping[str, Any]  # of plotly's layout
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # name -> x, y


def tune(
    job: Job, search: Callable[[Job], TunedValues], apply: Callable[[Job, TunedValues], Job]
) -> Result:
    """Search, keep the result, and with `loop.then=train` train with it.

    Collective. Everything that the search changes is restored before the training. A run that is
    resumed does not search again: it reads the result from its directory, so that the training
    goes on as it was.

    Args:
        search: shows its trials and returns the result, which is empty if it has no suggestion.
        apply: returns the job with the result as its settings.
    """
    tuned = _read_tuned(job)
    if tuned is None:
        with restored_after(job):
            start_weights(job)  # trials begin as the training will
            tuned = search(job)
        if job.run is not None and job.context.ranks.is_main:
            write_json(job.run.dir / TUNED_FILE, dict(tuned))
    else:
        values = ", ".join(f"{key} {value}" for key, value in tuned.items())
        job.view.note(f"already tuned: {values or 'no value was suggested'}")
    if job.loop_settings["then"] == "train":
        settings = {"final_splits": ["test"], **job.loop_settings}
        return train(replace(apply(job, tuned), loop_settings=settings))
    return run_and_report(job, lambda _: _make_result(job, tuned))


def show_report(job: Job, report: TuningReport) -> None:
    """Show a table of the trials, and write the page into the run directory."""
    header, *lines = TextTable(report.header, [row.cells for row in report.rows]).lines()
    job.view.note(header)
    for line, row in zip(lines, report.rows, strict=True):
        mark = f"  <- {row.mark}" if row.mark else ""
        job.view.note(f"{line}  {bar(row.value, report.largest)}{mark}".rstrip())
    job.view.note(f"ended by: {report.end}")
    if job.run is None or not job.context.ranks.is_main:
        return
    import plotly.graph_objects as go  # takes a second, which only this page is worth

    figure = go.Figure(
        [go.Scatter(x=x, y=y, name=name) for name, (x, y) in report.curves.items()],
        {
            "title": report.title,
            "xaxis": {"title": report.x_title, "type": "log"},
            "yaxis": report.y_axis,
        },
    )
    path = job.run.dir / f"{report.name}.html"
    write_text(path, mask_secrets(whole_page(figure)))
    job.view.note(f"picture: {path}")


def _read_tuned(job: Job) -> TunedValues | None:
    """Collective. Return the result of an earlier start of this run, or None."""
    tuned = None
    if job.run is not None and (job.run.dir / TUNED_FILE).exists():
        tuned = read_json(job.run.dir / TUNED_FILE)
    result: TunedValues | None = job.context.ranks.broadcast_object(tuned)
    return result


def _make_result(job: Job, tuned: TunedValues) -> Result:
    start_trackers(job)
    numbers = {k: float(v) for k, v in tuned.items() if isinstance(v, int | float)}
    job.trackers.log("tune", 0, numbers)
    metrics = {f"tune/{k}": v for k, v in numbers.items()}
    return Result("completed", 0, 0, metrics=metrics, notes={"tuned": dict(tuned)})


def with_batch_size(job: Job, size: int) -> Job:
    """Return the job with another `trainer.batch_size`; its length and schedule are recomputed."""
    trainer = replace(job.trainer, batch_size=size)
    job.context.micro_batch_size = size
    resized = replace(job, trainer=trainer)
    per_epoch = updates_per_epoch(resized, rows_per_update(resized))
    total = trainer.max_steps or per_epoch * (trainer.max_epochs or 0)
    assert job.learning_rates_for is not None, "build_job sets it"
    return replace(
        resized, total_steps=total, learning_rates=job.learning_rates_for(total, per_epoch)
    )


def with_lr_factor(job: Job, factor: float) -> Job:
    """Return the job with all base learning rates times a factor."""
    base = {name: rate * factor for name, rate in job.learning_rates.base.items()}
    return replace(job, learning_rates=replace(job.learning_rates, base=base))
