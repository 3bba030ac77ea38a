"""Writes what a training produces: metrics, speeds, checkpoints, and its result."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from runner.config.early_stopping import is_better
from runner.config.intervals import Interval, is_due
from runner.distributed.ranks import Ranks
from runner.metrics.names import ROW_KEYS
from runner.metrics.protocol import Metrics
from runner.training.job import Job, Result
from runner.training.loops.events import (
    CallbackRunner,
    current_progress,
    refuse_taken_names,
    write_metrics_row,
)
from runner.training.loops.run_facts import write_calibration
from runner.training.loops.start import list_resume_changes
from runner.training.loops.verdict import undefined_results
from runner.training.rng_state import rng_state_tensors
from runner.training.state import (
    BestEvaluation,
    TrainState,
    checkpoint_tensors,
    checkpoint_values,
    starts_optimizers_afresh,
)
from runner.training.steps import current_total_steps, rows_per_update
from runner.training.stop_signal import StopSignal
from runner.training.update.task import StepOutput


class Recorder:
    """Decides when a training logs, evaluates and saves, and writes the results."""

    def __init__(
        self,
        job: Job,
        state: TrainState,
        stop: StopSignal,
        *,
        split: str = "train",
    ) -> None:
        self.job, self.state, self.split = job, state, split
        self.callback_runner = CallbackRunner(job, state, stop)
        self.before = self.now = current_progress(state)  # before and after the last update
        self.saved_step = state.step if state.step else -1
        self.logged_progress = self.now
        self.reported_skipped = state.skipped
        self._held_metrics: Metrics | None = None  # of the last evaluation, with its rows

    def start(self) -> None:
        """Call `on_run_start` of the callbacks, and bring what a resume changes up to date.

        Collective.
        """
        self.callback_runner.call_run_start()
        self.replace_left_behind()

    def record_update(self, output: StepOutput) -> None:
        """Add an update to the train metrics, without synchronisation, and call the callbacks."""
        for prediction, losses in zip(output.predictions, output.losses):
            self.job.train_metrics.update(prediction, losses)
        self.before, self.now = self.now, current_progress(self.state)
        self.job.view.step(self.state.step)
        self.callback_runner.call_update(output)

    def due(self, interval: Interval | None) -> bool:
        """Return whether the last update reached or passed a multiple of an interval."""
        return is_due(interval, self.before, self.now)

    def save_due(self) -> bool:
        """Return whether a checkpoint is due, for itself or for a delivery made from it."""
        return self.due(self.job.cadence.save_every) or self.due(self.job.cadence.deliver_every)

    def log(self) -> None:
        """Write a row of the train metrics since the last row, and a row of speeds.

        Collective. Synchronises.

        Raises:
            ValueError: if the task logs a number under the name of another key of the row.
        """
        job, state = self.job, self.state
        metrics, _ = reduce_metrics(job.train_metrics, job.context.ranks)  # sync
        job.train_metrics.reset()
        rates = {f"lr/{name}": rate for name, rate in state.rates.items()}
        if job.trainer.batch_on_plateau.patience is not None:
            rates["update_rows"] = rows_per_update(job, state.batch_multiplier)
            rates["total_steps"] = current_total_steps(job, state)
        numbers = job.context.logged_means.means(job.context.ranks)  # sync
        job.context.logged_means.reset()
        refuse_taken_names("ctx.log", numbers, (*metrics, *rates, *ROW_KEYS))
        metrics |= numbers
        state.train_metrics, state.logged_step = metrics, state.step
        write_metrics_row(job, self.split, state.step, state.examples, metrics | rates)
        hidden = {name for name in numbers if "/" in name}  # in the log, but not on the line
        speed = self._speed()
        if job.run is not None:
            job.run.perf.append({"step": state.step, "examples": state.examples, **speed})
        job.trackers.log("perf", state.step, speed)
        job.view.log(state.step, {n: v for n, v in metrics.items() if n not in hidden}, speed)
        self._report_skipped()
        self.logged_progress = self.now

    def _report_skipped(self) -> None:
        """Warn of skipped updates in this window, more urgently if they are half or more."""
        state = self.state
        count = state.skipped - self.reported_skipped
        window = state.step - self.logged_progress.step
        self.reported_skipped = state.skipped
        if not count:
            return
        text = f"{count:,} updates skipped up to step {state.step:,}: a gradient was not finite"
        if 2 * count >= window:
            text = (
                f"{count:,} of the last {window:,} updates were skipped up to step {state.step:,}: "
                "a gradient was not finite, and the model hardly learns"
            )
        self.job.view.warn(text)

    def _speed(self) -> dict[str, float]:
        seconds = max(self.now.active_s - self.logged_progress.active_s, 1e-9)
        examples_per_s = (self.now.examples - self.logged_progress.examples) / seconds
        speed = {
            "examples_per_s": examples_per_s,
            "examples_per_s_per_rank": examples_per_s / self.job.context.ranks.world_size,
            "updates_per_s": (self.now.step - self.logged_progress.step) / seconds,
            "active_s": self.state.active_s,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        if self.job.device.type == "cuda":
            speed["peak_cuda_bytes"] = torch.cuda.max_memory_allocated(self.job.device)
        return speed

    def hold_metrics(self, metrics: Metrics) -> None:
        """Hold the metrics of an evaluation until it is known whether their rows are needed."""
        self._held_metrics = metrics

    def record_evaluation(self, results: Mapping[str, Mapping[str, float]]) -> bool:
        """Write a row for each split, and return whether validation is the best so far."""
        job, state = self.job, self.state
        for split, metrics in results.items():
            write_metrics_row(job, split, state.step, state.examples, metrics)
            if split != "validation":
                job.view.log_evaluation(split, state.step, metrics)
                self.callback_runner.call_evaluation(split, metrics)
        return "validation" in results and self._record_validation(results["validation"])

    def _record_validation(self, metrics: Mapping[str, float]) -> bool:
        job, state = self.job, self.state
        state.validation_metrics, state.validation_step = dict(metrics), state.step
        monitor = job.checkpoint.monitor
        value = metrics[monitor.metric.removeprefix("validation/")]
        best = None if state.best is None else state.best.value
        improved = is_better(value, best, monitor.direction)
        if improved:
            state.best = BestEvaluation(state.step, state.examples, value, dict(metrics))
            write_calibration(job, "validation", state.step, self._held_metrics)
        self._held_metrics = None  # their rows take memory
        job.view.log_evaluation("validation", state.step, metrics, best=improved)
        self.callback_runner.call_evaluation("validation", metrics, is_best=improved)
        return improved

    def record_final_evaluation(
        self, split: str, step: int, metrics: Mapping[str, float], seconds: float
    ) -> None:
        """Write the row of a split that is evaluated with the best weights at the end."""
        best = self.state.best
        examples = best.examples if best and best.step == step else self.state.examples
        write_metrics_row(self.job, split, step, examples, metrics)
        write_calibration(self.job, split, step, self._held_metrics)
        self._held_metrics = None
        self.callback_runner.call_evaluation(split, metrics)
        if self.job.run is not None:
            self.job.run.perf.append({"split": split, "step": step, "evaluation_s": seconds})

    def save(self, *, wait: bool = False) -> None:
        """Save a checkpoint of this step, unless there is one.

        Collective. Training goes on once the state is copied.

        Args:
            wait: return only when all checkpoints are written.
        """
        job, state = self.job, self.state
        if job.checkpointer is None or job.run is None:
            return
        if self.saved_step != state.step:
            self.callback_runner.call("on_checkpoint")
            started = time.perf_counter()
            metrics_bytes, metrics_sha256 = job.run.metrics.position()
            job.run.metrics.sync()  # the checkpoint refers to the rows before it
            if lost := job.run.metrics.find_damage(metrics_bytes, None):
                job.view.warn(f"{lost}; the run goes on, and a resume will ask about these rows")
            protected: tuple[int, ...] = () if state.best is None else (state.best.step,)
            deliver = None
            if job.delivery is not None:
                protected += job.delivery.protected_steps()
                deliver = job.delivery.deliver
            job.checkpointer.save(
                state.step,
                checkpoint_tensors(job.context, job.train_metrics)
                | rng_state_tensors(job.device, job.context.ranks),
                checkpoint_values(
                    state,
                    job.context,
                    metrics_bytes=metrics_bytes,
                    metrics_sha256=metrics_sha256,
                    signature=job.run.signature,
                    loss_parts=job.train_metrics.loss_parts(),
                    trackers=job.trackers.state(),
                    callbacks=job.callbacks.state(),
                    schedules=job.learning_rates.states(),
                ),
                protect=protected,
                on_saved=deliver if self.due(job.cadence.deliver_every) else None,
            )
            self.saved_step = state.step
            stall = time.perf_counter() - started
            job.run.perf.append({"step": state.step, "save_stall_s": stall})
        if wait:
            job.checkpointer.finish()

    def finish_delivery(self, *, interrupted: bool) -> None:
        """Deliver the last checkpoint, which has been written; nothing after a signal."""
        job = self.job
        if job.delivery is not None and job.run is not None:
            last = job.run.dir / "checkpoints" / f"step-{self.saved_step}"
            job.delivery.finish(None if interrupted else last)

    def replace_left_behind(self) -> None:
        """Replace the checkpoint of a resume that discarded optimizer states or has another best.

        Collective. After a later kill the run then resumes without these states, too, and `best`
        means the checkpoint by the present metric.
        """
        run = self.job.run
        changes = [] if run is None else list_resume_changes(run)
        another_best = any(key.startswith("checkpoint.monitor.") for key, _, _ in changes)
        if self.state.step and (another_best or starts_optimizers_afresh(self.job)):
            self.saved_step = -1
            self.save(wait=True)

    def make_result(
        self,
        status: str,
        splits: Mapping[str, Mapping[str, float]],
        *,
        signal: int | None = None,
        error: str | None = None,
        evaluated_step: int | None = None,
    ) -> Result:
        """Return the result of the run.

        Args:
            splits: split -> its final metrics, beside those of the training.
            evaluated_step: the update whose weights the splits were evaluated with; None: the last.
        """
        state = self.state
        metrics = {self.split: state.train_metrics, **splits}
        flat = {f"{split}/{name}": v for split, m in metrics.items() for name, v in m.items()}
        best = None if state.best is None else {"step": state.best.step, "value": state.best.value}
        notes: dict[str, Any] = {
            "skipped_updates": state.skipped,
            "bad_rows": self.job.dataset.bad_rows["count"],
            "active_s": state.active_s,
        }
        if splits:
            notes["evaluated_step"] = state.step if evaluated_step is None else evaluated_step
        if undefined := undefined_results(flat, state.notes):
            notes["undefined"] = undefined
        if state.stopped is not None:
            notes["stopped"] = state.stopped
        if self.job.checkpointer is not None and self.job.checkpointer.newest is not None:
            notes["checkpoint"] = asdict(self.job.checkpointer.newest)
        return Result(status, state.step, state.examples, flat, best, error, signal, notes)


def reduce_metrics(metrics: Metrics, ranks: Ranks) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the metrics over the rows of all ranks, the same on each, and notes about them.

    Collective. On rank 0 `metrics` holds the rows of all ranks afterwards: reset or drop it.
    """
    if not ranks.is_distributed:
        return metrics.compute(), metrics.notes()
    states = ranks.gather_states(metrics.state())
    reduced = None
    if states is not None:
        for state in states[1:]:
            metrics.merge(state)
        reduced = metrics.compute(), metrics.notes()
    result: tuple[dict[str, float], tuple[str, ...]] = ranks.broadcast_object(reduced)
    return result
