"""Records of a job that is ready to run, and of its result; a loop is a function of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from runner.config.intervals import Interval
from runner.config.settings import CheckpointSettings, TrainerSettings
from runner.data.core.dataset import Dataset
from runner.distributed.ranks import current_ranks
from runner.metrics.protocol import Metrics
from runner.metrics.settings import MetricSettings
from runner.reporting.console import View
from runner.reporting.trackers import Trackers
from runner.rundir.checkpoint import Checkpoint, Checkpointer
from runner.rundir.run import Run
from runner.training.callbacks import Callbacks
from runner.training.update.context import Context
from runner.training.update.task import Task


@dataclass(frozen=True)
class LearningRates:
    """Full learning rates by name (`dense`, `sparse`, parts) and the schedules that scale them."""

    base: Mapping[str, float]
    factor: Callable[[int], float]  # of update number k, from 1
    # by name, in place of `factor`
    factors_by_name: Mapping[str, Callable[[int], float]] = field(default_factory=dict)

    def states(self) -> dict[str, Any]:
        """Return the states of the schedules that have one, for checkpoints."""
        states = {n: f.state() for n, f in self._factors().items() if hasattr(f, "state")}
        return {name: state for name, state in states.items() if state is not None}

    def load_states(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `states()`; a schedule that is not in it starts afresh."""
        for name, factor in self._factors().items():
            if name in saved and hasattr(factor, "load_state"):
                factor.load_state(saved[name])

    def _factors(self) -> dict[str, Any]:
        return {"scheduler": self.factor, **{f"lr/{n}": f for n, f in self.factors_by_name.items()}}


@dataclass(frozen=True)
class Cadence:
    """When a run logs, evaluates and saves; None: only at the end."""

    log_every: Interval | None
    eval_every: Interval | None
    save_every: Interval | None
    deliver_every: Interval | None = None


class Delivery(Protocol):
    """Delivers the weights of a training to servers. Only rank 0 has one."""

    def start(self, job: Job) -> None:
        """Prepare for deliveries, before the first update.

        Raises:
            UserError: for a model or dataset that cannot be delivered.
        """

    def deliver(self, checkpoint: Path) -> None:
        """Deliver the weights of a checkpoint; runs in the thread that has written it.

        Raises:
            UserError: if that was not possible; the training continues with a warning.
        """

    def protected_steps(self) -> tuple[int, ...]:
        """Return the steps whose checkpoints are still needed."""

    def finish(self, checkpoint: Path | None) -> None:
        """Deliver the last checkpoint; with None end at once, as after a signal."""


@dataclass(frozen=True)
class Job:
    """All parts of one job, built and checked; a loop is a function of it."""

    name: str
    seed: int
    config: Mapping[str, Any]
    trainer: TrainerSettings
    checkpoint: CheckpointSettings
    metric_settings: MetricSettings
    cadence: Cadence
    loop: Callable[[Job], Result]
    loop_settings: Mapping[str, Any]  # of the loop's group, without `_target_`
    device: torch.device
    dataset: Dataset
    task: Task
    context: Context
    learning_rates: LearningRates
    total_steps: int  # updates of the whole run; 0: a stream without an end
    # True: exact, for evaluation; False: cheap, for training
    make_metrics: Callable[[bool], Metrics]
    train_metrics: Metrics
    trackers: Trackers
    view: View
    callbacks: Callbacks = field(default_factory=lambda: Callbacks(ranks=current_ranks()))
    # from updates of the run and of an epoch, for loops that change the length of the run
    learning_rates_for: Callable[[int | None, int | None], LearningRates] | None = None
    run: Run | None = None  # None: nothing is written (debug)
    checkpointer: Checkpointer | None = None
    delivery: Delivery | None = None  # on rank 0, where something is delivered
    allowed: tuple[str, ...] = ()  # packages that a `_target_` may name besides ours
    source_checkpoint: Checkpoint | None = None  # the checkpoint that loop=eval evaluates
    # max or min, what is better, by the name of a metric of `metrics.own` whose class says it
    own_directions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What `result.json` holds. `metrics` is flat: `split/metric[/task]`."""

    status: str  # completed, interrupted, failed, or pruned by its sweep
    step: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] | None = None  # step, value
    error: str | None = None
    signal: int | None = None  # which one interrupted it
    notes: dict[str, Any] = field(default_factory=dict)  # skipped updates, bad rows, ...
