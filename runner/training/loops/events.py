"""Calls callbacks, lets them see and steer the training, and handles those that raise."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.config.intervals import Interval, Progress, is_due
from runner.distributed.ranks import Ranks
from runner.errors import ConfigError, UserError
from runner.metrics.names import ROW_KEYS
from runner.reporting.trackers import Histogram
from runner.rundir.secrets import mask_secrets
from runner.training.callbacks.callback_set import EVENTS
from runner.training.job import Job, Result
from runner.training.rng_state import preserve_rng_state
from runner.training.state import TrainState
from runner.training.steps import current_total_steps
from runner.training.stop_signal import StopSignal
from runner.training.update.context import Context
from runner.training.update.task import StepOutput


class CallbackError(RuntimeError):
    """A callback raised; the message names it and the event."""


@dataclass
class PendingRequests:
    """Requests of callbacks of this rank, which other ranks may not know yet."""

    stop: str | None = None  # the reason
    failed: list[str] = field(default_factory=list)  # names of callbacks that raised
    failure: str | None = None  # what the first of them did, and when
    is_refusal: bool = False  # whether it refused its settings at the start
    error: BaseException | None = None


class TrainingHandle:
    """The training as a callback sees it: its progress, its parts, and possible requests."""

    def __init__(
        self, job: Job, state: TrainState, stop: StopSignal, requests: PendingRequests
    ) -> None:
        self.job, self.state = job, state
        self.context: Context = job.context  # model, tables, optimizers, device
        self.ranks: Ranks = job.context.ranks
        self.note, self.warn = job.view.note, job.view.warn
        self._stop, self._requests = stop, requests
        self.before = self.now = current_progress(state)  # before and after the last update

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def total_steps(self) -> int:
        return current_total_steps(self.job, self.state)

    def due(self, interval: Interval | None) -> bool:
        """Return whether the last update reached or passed a multiple of the interval."""
        return is_due(interval, self.before, self.now)

    def stop(self, reason: str) -> None:
        """End the training after this update, as if its length were reached.

        The best weights are tested and the run is completed. One rank's request ends all ranks.
        """
        self._requests.stop = self._requests.stop or reason

    def pause(self, reason: str) -> None:
        """Save and leave after this update, as at SIGTERM: the run can be resumed."""
        if self._stop.local_signal is None:
            self.warn(
                f"step {self.step:,}: {reason}: leaving; checkpoint.keep=0 saves nothing"
                if self.job.checkpointer is None
                else f"step {self.step:,}: {reason}: saving and leaving"
            )
            self._stop.request(signal.SIGTERM)

    def log(self, split: str, numbers: Mapping[str, float]) -> None:
        """Write a row of metrics.jsonl, and send it to the trackers.

        Only for numbers that are the same in two equal runs; see `log_speed`.

        Raises:
            ValueError: for a number under the name of another key of the row.
        """
        refuse_taken_names("training.log", numbers, ROW_KEYS)
        write_metrics_row(self.job, split, self.state.step, self.state.examples, numbers)

    @property
    def shows_histograms(self) -> bool:
        """Whether a tracker of this run shows histograms; known on rank 0 only."""
        return self.job.trackers.show_histograms

    def log_histograms(self, split: str, histograms: Mapping[str, Histogram | None]) -> None:
        """Send histograms to the trackers that show them; None, of no finite value, is left out."""
        shown = {name: h for name, h in histograms.items() if h is not None}
        self.job.trackers.log_histograms(split, self.step, shown)

    def log_speed(self, numbers: Mapping[str, float]) -> None:
        """Write times or memory as a row of perf.jsonl, and send it to the trackers as `perf`."""
        if self.job.run is not None:
            self.job.run.perf.append({"step": self.step, **numbers})
        self.job.trackers.log("perf", self.step, numbers)


class CallbackRunner:
    """Calls the callbacks of one training. Without any, each method returns at once.

    The methods that are collective are so only if a callback is listed.
    """

    def __init__(self, job: Job, state: TrainState, stop: StopSignal) -> None:
        self._exist = job.callbacks.exist_on_any_rank
        self._callbacks = job.callbacks.by_name
        self._ranks, self._device, self._view = job.context.ranks, job.device, job.view
        self._state, self._stop, self._requests = state, stop, PendingRequests()
        self.training = TrainingHandle(job, state, stop, self._requests)
        self._names_by_event = {
            event: [name for name, c in self._callbacks.items() if hasattr(c, event)]
            for event in EVENTS
        }

    def call(self, event: str, *args: Any) -> None:
        """Call a method of `EVENTS` with the training and further arguments."""
        for name in self._names_by_event[event]:
            # the other callbacks go on, since ranks may wait for each other in them
            if name in self._requests.failed:
                continue
            callback = self._callbacks[name]
            try:
                with preserve_rng_state(self._device):
                    getattr(callback, event)(self.training, *args)
            except Exception as error:
                self._note_failure(name, event, error)

    def call_run_start(self) -> None:
        """Call `on_run_start`. Collective."""
        self.call("on_run_start")
        self.sync_requests()
        self.raise_failure()

    def call_update_start(self) -> None:
        """Call `on_epoch_start` before the first update of an epoch, and `on_batch_start`."""
        if not self._exist:
            return
        if self._state.cursor.offset == 0:
            self.call("on_epoch_start")
        self.call("on_batch_start")

    def call_update(self, output: StepOutput) -> None:
        """Call `on_update`, and `on_epoch` after the last update of an epoch. Collective."""
        if not self._exist:
            return
        training = self.training
        training.before, training.now = training.now, current_progress(self._state)
        self.call("on_update", output)
        if training.now.epoch > training.before.epoch:
            self.call("on_epoch")
        self.sync_requests()

    def call_evaluation(
        self, split: str, metrics: Mapping[str, float], *, is_best: bool = False
    ) -> None:
        """Call `on_evaluation`, and `on_best` if it is the best so far. Collective."""
        self.call("on_evaluation", split, metrics)
        if is_best:
            self.call("on_best", metrics)
        self.sync_requests()

    def call_run_end(self, result: Result) -> None:
        """Call `on_run_end`. Collective."""
        self.call("on_run_end", result)
        self.raise_failure()

    def sync_requests(self) -> None:
        """Stop on all ranks if a callback of one rank has asked to. Collective."""
        if not self._exist or self._state.stopped is not None:
            return
        if self._ranks.all_reduce_max(self._requests.stop is not None):
            reason = next(filter(None, self._ranks.all_gather_object(self._requests.stop)))
            self._state.stopped = mask_secrets(reason)
            self._view.note(f"step {self._state.step:,}: stopping: {reason}")

    def raise_failure(self) -> None:
        """Raise on all ranks if a callback raised on one.

        Collective.

        Raises:
            CallbackError: if a callback raised.
            ConfigError: if it refused its settings when the run started.
        """
        if not self._exist:
            return
        own_failure = (self._requests.failure, self._requests.is_refusal)
        failures = [found for found in self._ranks.all_gather_object(own_failure) if found[0]]
        if failures:
            failure, is_refusal = failures[0]
            kind = ConfigError if is_refusal else CallbackError
            raise kind(failure) from self._requests.error

    def _note_failure(self, name: str, event: str, error: BaseException) -> None:
        """Record an error; the update is finished and saved before `raise_failure` raises."""
        requests, step = self._requests, self._state.step
        requests.failed.append(name)
        if requests.failure is None:
            requests.error = error
            requests.is_refusal = event == "on_run_start" and isinstance(error, UserError)
            if requests.is_refusal:
                requests.failure = f"callbacks.{name}: {error}"
            else:
                where = f"callbacks.{name} ({type(self._callbacks[name]).__name__}) at {event}"
                what = f"raised {type(error).__name__}: {error}"
                requests.failure = f"{where}, step {step:,}: {what}"
                if step and self.training.job.checkpointer is not None:
                    requests.failure += f"; the training is saved at step {step:,}"
        self._stop.request(signal.SIGTERM)


def current_progress(state: TrainState) -> Progress:
    """Return how far the training has come, in all units of intervals."""
    return Progress(state.step, state.examples, state.cursor.epoch, state.active_s)


def refuse_taken_names(call: str, numbers: Iterable[str], used_names: Iterable[str]) -> None:
    """Check that numbers for a row of metrics.jsonl do not have names of its other keys.

    Raises:
        ValueError: for a number that does.
    """
    if clashes := sorted({*numbers} & {*used_names}):
        raise ValueError(
            f"{call}: {clashes[0]!r} is another key of the row in metrics.jsonl; log the number "
            "under a name of its own"
        )


def write_metrics_row(
    job: Job, split: str, step: int, examples: int, metrics: Mapping[str, float]
) -> None:
    """Write a row of metrics.jsonl, and send its metrics to the trackers."""
    if job.run is not None:
        job.run.metrics.append({"split": split, "step": step, "examples": examples, **metrics})
    job.trackers.log(split, step, metrics)
