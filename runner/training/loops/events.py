"""When callbacks are called, what they see and may ask for, and what happens if one raises."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runner.config.intervals import Interval, Progress, is_due
from runner.distributed.ranks import Ranks
from runner.reporting.trackers import Histogram
from runner.training.callbacks.callback_set import EVENTS, has_state, undeclared_state_message
from runner.training.callbacks.statefulness import first_difference, snapshot
from runner.training.job import Job, Result
from runner.training.state import TrainState
from runner.training.steps import current_total_steps
from runner.training.stop_signal import StopSignal
from runner.training.update.context import Context
from runner.training.update.task import StepOutput


class CallbackError(RuntimeError):
    """A callback raised: which one, at which event."""


@dataclass
class PendingRequests:
    """What callbacks of this rank have asked for and not all ranks have heard of yet."""

    stop: str | None = None  # the reason
    failed: list[str] = field(default_factory=list)  # names
    failure: str | None = None  # of the first
    error: BaseException | None = None


class TrainingHandle:
    """The training as a callback sees it: where it is, what it is made of, what may be asked."""

    def __init__(
        self, job: Job, state: TrainState, stop: StopSignal, asked: PendingRequests
    ) -> None:
        self.job, self.state = job, state
        self.context: Context = job.context  # model, tables, optimizers, device
        self.ranks: Ranks = job.context.ranks
        self.note, self.warn = job.view.note, job.view.warn
        self._stop, self._asked = stop, asked
        self.before = self.now = current_progress(state)  # around the last update

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def total_steps(self) -> int:
        return current_total_steps(self.job, self.state)

    def due(self, interval: Interval | None) -> bool:
        """Whether the last update reached or passed a multiple of the interval."""
        return is_due(interval, self.before, self.now)

    def stop(self, reason: str) -> None:
        """Ends the training after this update as if its length were reached: the best weights are
        tested, the run is completed. Any rank's say ends all."""
        self._asked.stop = self._asked.stop or reason

    def pause(self, reason: str) -> None:
        """Saves and leaves after this update as at SIGTERM: the run can be resumed."""
        if self._stop.local_signal is None:
            self.warn(f"step {self.step:,}: {reason}: saving and leaving")
            self._stop.request(signal.SIGTERM)

    def log(self, split: str, numbers: Mapping[str, float]) -> None:
        """A row of metrics.jsonl, and to the trackers: only what two equal runs both have."""
        write_metrics_row(self.job, split, self.state.step, self.state.examples, numbers)

    @property
    def shows_histograms(self) -> bool:
        """Whether a tracker of this run does; on rank 0."""
        return self.job.trackers.show_histograms

    def log_histograms(self, split: str, histograms: Mapping[str, Histogram | None]) -> None:
        """To the trackers that show them; None: of no finite value, which is left out."""
        there = {name: h for name, h in histograms.items() if h is not None}
        self.job.trackers.log_histograms(split, self.step, there)

    def log_speed(self, numbers: Mapping[str, float]) -> None:
        """A row of perf.jsonl, and to the trackers as `perf`: times, memory."""
        if self.job.run is not None:
            self.job.run.perf.append({"step": self.step, **numbers})
        self.job.trackers.log("perf", self.step, numbers)


class CallbackRunner:
    """Calls the callbacks of one training. Without any, each method returns at once."""

    def __init__(self, job: Job, state: TrainState, stop: StopSignal) -> None:
        self._listed, self._ranks, self._state = (
            job.callbacks.exist_on_any_rank,
            job.context.ranks,
            state,
        )
        self._device, self._stop, self._asked = job.device, stop, PendingRequests()
        self._view = job.view
        self.training = TrainingHandle(job, state, stop, self._asked)
        self._callbacks = job.callbacks.by_name
        self._methods = {
            event: [name for name, c in self._callbacks.items() if hasattr(c, event)]
            for event in EVENTS
        }
        self._snapshots = {n: snapshot(c) for n, c in self._callbacks.items() if not has_state(c)}

    def call_run_start(self) -> None:
        """Collective."""
        self._call("on_run_start")
        self.sync_requests()
        self.raise_failure()

    def call_update(self, output: StepOutput) -> None:
        """Collective."""
        if not self._listed:
            return
        training = self.training
        training.before, training.now = training.now, current_progress(self._state)
        self._call("on_update", output)
        if training.now.epoch > training.before.epoch:
            self._call("on_epoch")
        self.sync_requests()

    def call_evaluation(self, split: str, metrics: Mapping[str, float]) -> None:
        """Collective."""
        self._call("on_evaluation", split, metrics)
        self.sync_requests()

    def call_checkpoint(self) -> None:
        self._call("on_checkpoint")

    def call_run_end(self, result: Result) -> None:
        """Collective."""
        self._call("on_run_end", result)
        self.raise_failure()

    def sync_requests(self) -> None:
        """Collective, if any is listed. All ranks stop if one was asked to."""
        if not self._listed or self._state.stopped is not None:
            return
        if self._ranks.all_reduce_max(self._asked.stop is not None):
            reasons = [
                reason for reason in self._ranks.all_gather_object(self._asked.stop) if reason
            ]
            self._state.stopped = reasons[0]
            self._view.note(f"step {self._state.step:,}: stopping: {reasons[0]}")

    def raise_failure(self) -> None:
        """Collective, if any is listed. Raises: CallbackError on all ranks if a callback raised."""
        if not self._listed:
            return
        failures = [
            failure for failure in self._ranks.all_gather_object(self._asked.failure) if failure
        ]
        if failures:
            raise CallbackError(failures[0]) from self._asked.error

    def _call(self, event: str, *args: Any) -> None:
        for name in self._methods[event]:
            if name in self._asked.failed:  # the others go on: ranks may wait for each other there
                continue
            callback = self._callbacks[name]
            try:
                with preserve_rng_state(self._device):
                    getattr(callback, event)(self.training, *args)
            except Exception as error:
                self._failed(name, event, f"raised {type(error).__name__}: {error}", error)
                continue
            if name in self._snapshots:
                changed = first_difference(self._snapshots[name], snapshot(callback))
                if changed is not None:
                    self._failed(name, event, undeclared_state_message(changed), None)

    def _failed(self, name: str, event: str, what: str, error: BaseException | None) -> None:
        """Lets the update be finished and saved, as at SIGTERM; `raise_failure` comes after."""
        where = f"callbacks.{name} ({type(self._callbacks[name]).__name__})"
        step = self._state.step
        saved = f"; the training is saved at step {step:,}" if step else ""
        self._asked.failed.append(name)
        if self._asked.failure is None:
            self._asked.failure = f"{where} at {event}, step {step:,}: {what}{saved}"
            self._asked.error = error
        self._stop.request(signal.SIGTERM)


@contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Torch's, Python's and NumPy's random states are afterwards what they were before."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)


def current_progress(state: TrainState) -> Progress:
    return Progress(state.step, state.examples, state.cursor.epoch, state.active_s)


def write_metrics_row(
    job: Job, split: str, step: int, examples: int, metrics: Mapping[str, float]
) -> None:
    """A row of metrics.jsonl, and the same to the trackers."""
    if job.run is not None:
        job.run.metrics.append({"split": split, "step": step, "examples": examples, **metrics})
    job.trackers.log(split, step, metrics)
