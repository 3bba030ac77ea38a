"""Jobs built as `python -m runner` builds them, inside the process of a benchmark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.compose import ComposedConfig, compose_job
from runner.config.composed_checks import check_composed
from runner.config.locations import PROJECT
from runner.config.targets import allowed_packages
from runner.launch import run_spec
from runner.machine.cores import set_thread_environment
from runner.rundir.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.training.job import Job


def prepared(overrides: Sequence[str]) -> ComposedConfig:
    """Compose and check a configuration, and set the threads that torch reads when it is imported.

    Raises: UserError for a mistake in the overrides.
    """
    composed = compose_job(overrides)
    check_composed(composed, allowed_packages(()))
    set_thread_environment(composed.config["trainer"]["num_threads"])
    return composed


@contextmanager
def job_in(folder: Path, composed: ComposedConfig) -> Iterator[Job]:
    """Build a job with a new run directory in `folder`; its view writes plain lines into memory."""
    from runner.reporting.console import View
    from runner.training.builder import build_job

    template = str(folder / "{time}_{signature}")
    run = open_run(template, run_spec(composed), project=PROJECT)
    try:
        view = View(io.StringIO())
        yield build_job(
            composed.config, run, view=view, allowed=allowed_packages(()), name=composed.name
        )
    finally:
        run.close()


def job_without_run(composed: ComposedConfig) -> Job:
    """Build a job that writes nothing, to measure its parts."""
    from runner.reporting.console import View
    from runner.training.builder import build_job

    return build_job(composed.config, None, view=View(io.StringIO()), allowed=allowed_packages(()))


def job_to_update(composed: ComposedConfig) -> Job:
    """Build a job that writes nothing, with the learning rates of its first update."""
    from runner.training.state import TrainState
    from runner.training.steps import set_learning_rates

    job = job_without_run(composed)
    set_learning_rates(job, TrainState())
    return job
