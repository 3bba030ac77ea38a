"""What a training writes while it runs: metrics, speeds, checkpoints, and its result."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Mapping

import torch

from runner.intervals import Progress, due
from runner.job import Job, Result
from runner.loops.measured import measured
from runner.state import Best, TrainState, random_tensors, tensors, values
from runner.task import StepOutput


class Recorder:
    """Keeps the cadence of one training and puts things where they go. Decides nothing else."""

    def __init__(self, job: Job, state: TrainState, *, split: str = "train") -> None:
        self.job, self.state, self.split = job, state, split
        self.before = self.now = self._progress()
        self.saved_step = state.step if state.step else -1
        self.logged = self.now
        self.skipped_told = state.skipped

    def _progress(self) -> Progress:
        s = self.state
        return Progress(s.step, s.examples, s.cursor.epoch, s.active_s)

    def update(self, output: StepOutput) -> None:
        """Takes one update into the train metrics; no synchronisation."""
        for prediction, losses in zip(output.predictions, output.losses):
            self.job.train_metrics.update(prediction, losses)
        self.before, self.now = self.now, self._progress()
        self.job.view.step(self.state.step)

    def log_due(self) -> bool:
        return due(self.job.cadence.log_every, self.before, self.now)

    def evaluation_due(self) -> bool:
        return due(self.job.cadence.eval_every, self.before, self.now)

    def save_due(self) -> bool:
        return due(self.job.cadence.save_every, self.before, self.now)

    def log(self) -> None:
        """A row of train metrics since the last one, and a row of speeds."""
        job, state = self.job, self.state
        metrics, _ = measured(job.train_metrics, job.context.ranks)  # sync
        job.train_metrics.reset()
        factor = job.rates.factor(state.step)
        rates = {f"lr/{name}": full * factor for name, full in job.rates.full.items()}
        state.train_metrics = metrics
        self._row(self.split, state.step, state.examples, metrics | rates)
        speed = self._speed()
        if job.run is not None:
            job.run.perf.append({"step": state.step, "examples": state.examples, **speed})
        job.view.log(state.step, metrics, speed)
        if state.skipped > self.skipped_told:
            job.view.warn(
                f"{state.skipped - self.skipped_told} updates skipped up to step {state.step}: "
                "a gradient was not finite"
            )
            self.skipped_told = state.skipped
        self.logged = self.now

    def _speed(self) -> dict[str, float]:
        seconds = max(self.now.active_s - self.logged.active_s, 1e-9)
        speed = {
            "examples_per_s": (self.now.examples - self.logged.examples) / seconds,
            "updates_per_s": (self.now.step - self.logged.step) / seconds,
            "active_s": self.state.active_s,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        if self.job.device.type == "cuda":
            speed["peak_cuda_bytes"] = torch.cuda.max_memory_allocated(self.job.device)
        return speed

    def evaluated(self, metrics: Mapping[str, float]) -> bool:
        """Writes a row of the validation split; returns whether it is the best so far."""
        job, state = self.job, self.state
        self._row("validation", state.step, state.examples, metrics)
        monitor = job.checkpoint.monitor
        value = metrics[monitor.metric.removeprefix("validation/")]
        best = None if state.best is None else state.best.value
        improved = is_better(value, best, monitor.direction)
        if improved:
            state.best = Best(state.step, state.examples, value, dict(metrics))
        job.view.evaluated("validation", state.step, metrics, best=improved)
        return improved

    def evaluated_at_end(
        self, split: str, step: int, metrics: Mapping[str, float], seconds: float
    ) -> None:
        examples = self.state.best.examples if self.state.best else self.state.examples
        self._row(split, step, examples, metrics)
        if self.job.run is not None:
            self.job.run.perf.append({"split": split, "step": step, "evaluation_s": seconds})

    def _row(self, split: str, step: int, examples: int, metrics: Mapping[str, float]) -> None:
        if self.job.run is not None:
            self.job.run.metrics.append(
                {"split": split, "step": step, "examples": examples, **metrics}
            )
        self.job.trackers.log(split, step, metrics)

    def save(self, *, wait: bool = False) -> None:
        """A checkpoint of this step, unless there is one; training goes on once it is copied."""
        job, state = self.job, self.state
        if job.checkpointer is None or job.run is None:
            return
        if self.saved_step != state.step:
            started = time.perf_counter()
            job.run.metrics.sync()  # the checkpoint counts on the rows before it
            job.checkpointer.save(
                state.step,
                tensors(job.context, job.train_metrics)
                | random_tensors(job.device, job.context.ranks),
                values(
                    state,
                    job.context,
                    metrics_bytes=job.run.metrics.size(),
                    signature=job.run.signature,
                    trackers=job.trackers.state(),
                ),
                protect=() if state.best is None else (state.best.step,),
            )
            self.saved_step = state.step
            stall = time.perf_counter() - started
            job.run.perf.append({"step": state.step, "save_stall_s": stall})
        if wait:
            job.checkpointer.finish()

    def result(
        self, status: str, splits: Mapping[str, Mapping[str, float]], *, signal: int | None = None
    ) -> Result:
        state = self.state
        metrics = {self.split: state.train_metrics, **splits}
        flat = {f"{split}/{name}": v for split, m in metrics.items() for name, v in m.items()}
        best = None if state.best is None else {"step": state.best.step, "value": state.best.value}
        notes = {
            "skipped_updates": state.skipped,
            "bad_rows": self.job.dataset.bad_rows["count"],
            "active_s": state.active_s,
        }
        return Result(status, state.step, state.examples, flat, best, signal=signal, notes=notes)


def is_better(value: float, best: float | None, direction: str) -> bool:
    """Strictly better than the best so far; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value > best if direction == "max" else value < best
