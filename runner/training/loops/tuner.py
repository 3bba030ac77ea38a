"""What tuning found: kept in the run directory, laid on the job, gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from runner.rundir.json_files import read_json, write_json
from runner.training.job import Job, Result
from runner.training.loops.rollback import restored_after
from runner.training.loops.session import run_and_report, start_trackers
from runner.training.loops.train import train
from runner.training.steps import rows_per_update, updates_per_epoch
from runner.training.warm_start.warm_start import wants_warm_start, warm_start

TUNED_FILE = "tuned.json"
TunedValues = Mapping[str, Any]  # key of the configuration, or `rates`, -> what was found


def tune(
    job: Job, search: Callable[[Job], TunedValues | None], apply: Callable[[Job, Any], Job]
) -> Result:
    """Searches, tells, and with `loop.then=train` trains with what was found. Collective.

    A run that is resumed does not search again: what was found is in its directory, so that the
    training goes on as it was. Everything that the search touches is restored first.
    """
    found = _known(job)
    if found is None:
        found = _search(job, search)
        if job.run is not None and job.context.ranks.is_main:
            write_json(job.run.dir / TUNED_FILE, found)
    else:
        job.view.note(f"tuned already: {_spoken(found)}")
    if job.loop_settings["then"] == "train":
        after = apply(job, found)
        settings = {"final_splits": ["test"], **job.loop_settings}
        return train(replace(after, loop_settings=settings))
    return run_and_report(job, lambda: _result(job, found))


def _search(job: Job, search: Callable[[Job], TunedValues | None]) -> dict[str, Any]:
    """From the weights that training would start with."""
    with restored_after(job):
        if wants_warm_start(job.checkpoint):
            job.view.note(warm_start(job))
        return dict(search(job) or {})


def _known(job: Job) -> dict[str, Any] | None:
    """Collective. What an earlier start of this run found."""
    found = None
    if job.run is not None and (job.run.dir / TUNED_FILE).exists():
        found = read_json(job.run.dir / TUNED_FILE)
    return job.context.ranks.broadcast_object(found)


def _result(job: Job, found: TunedValues) -> Result:
    start_trackers(job)
    metrics = {f"tune/{k}": float(v) for k, v in found.items() if isinstance(v, int | float)}
    job.trackers.log("tune", 0, {k.removeprefix("tune/"): v for k, v in metrics.items()})
    return Result("completed", 0, 0, metrics=metrics, notes={"tuned": dict(found)})


def _spoken(found: TunedValues) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items()) or "nothing better was found"


def with_batch_size(job: Job, size: int) -> Job:
    """The same training in batches of another size: its length and schedule counted anew."""
    trainer = replace(job.trainer, batch_size=size)
    job.context.micro_batch_size = size
    resized = replace(job, trainer=trainer)
    per_epoch = updates_per_epoch(resized, rows_per_update(resized))
    total = trainer.max_steps or per_epoch * (trainer.max_epochs or 0)
    assert job.learning_rates_for is not None, "the builder gives it"
    return replace(
        resized, total_steps=total, learning_rates=job.learning_rates_for(total, per_epoch)
    )


def with_lr_factor(job: Job, factor: float) -> Job:
    """The same training with all full rates times a factor."""
    full = {name: rate * factor for name, rate in job.learning_rates.base.items()}
    return replace(job, learning_rates=replace(job.learning_rates, base=full))


def write_plot(job: Job, name: str, make: Callable[[Any], Any]) -> None:
    """A page with a picture, in the run directory, where plotly is installed.

    Args: make: from plotly.graph_objects to a figure.
    """
    if job.run is None or not job.context.ranks.is_main or find_spec("plotly") is None:
        return
    import plotly.graph_objects as go

    path = job.run.dir / f"{name}.html"
    path.write_text(make(go).to_html(include_plotlyjs=True), encoding="utf-8")
    job.view.note(f"picture: {path}")
