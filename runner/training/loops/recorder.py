"""What a training writes while it runs: metrics, speeds, checkpoints, and its result."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

import torch

from runner.config.early_stopping import is_better
from runner.config.intervals import due
from runner.distributed.ranks import Ranks
from runner.metrics.protocol import Metrics
from runner.training.job import Job, Result
from runner.training.loops.events import Events, progress, write_row
from runner.training.loops.run_facts import keep_calibration
from runner.training.rng_state import random_tensors
from runner.training.state import Best, TrainState, tensors, values
from runner.training.steps import rows_of_update, total_steps
from runner.training.stop_signal import Stop
from runner.training.update.task import StepOutput


class Recorder:
    """Keeps the cadence of one training and puts things where they go. Decides nothing else."""

    def __init__(
        self, job: Job, state: TrainState, events: Events | None = None, *, split: str = "train"
    ) -> None:
        self.job, self.state, self.split = job, state, split
        self.events = events or Events(job, state, Stop(job.context.ranks))
        self.before = self.now = progress(state)
        self.saved_step = state.step if state.step else -1
        self.logged = self.now
        self.skipped_told = state.skipped
        self._pass: Metrics | None = None  # the last evaluation's
        self.validation: Mapping[str, float] = {}  # of the last evaluation

    def update(self, output: StepOutput) -> None:
        """Takes one update into the train metrics; no synchronisation. Tells the callbacks."""
        for prediction, losses in zip(output.predictions, output.losses):
            self.job.train_metrics.update(prediction, losses)
        self.before, self.now = self.now, progress(self.state)
        self.job.view.step(self.state.step)
        self.events.updated(output)

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
        rates = {f"lr/{name}": rate for name, rate in state.rates.items()}
        if job.trainer.batch_on_plateau.patience is not None:
            rates["update_rows"] = rows_of_update(job, state.growth)
            rates["total_steps"] = total_steps(job, state)
        numbers = job.context.numbers.means(job.context.ranks)  # sync
        job.context.numbers.reset()
        if taken := sorted(numbers.keys() & metrics.keys()):
            raise ValueError(f"ctx.log({taken[0]!r}, ...): is the name of a metric")
        metrics |= numbers
        state.train_metrics, state.logged_step = metrics, state.step
        write_row(job, self.split, state.step, state.examples, metrics | rates)
        apart = {name for name in numbers if "/" in name}  # in the log, not on the line
        speed = self._speed()
        if job.run is not None:
            job.run.perf.append({"step": state.step, "examples": state.examples, **speed})
        job.view.log(state.step, {n: v for n, v in metrics.items() if n not in apart}, speed)
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

    def take_pass(self, metrics: Metrics) -> None:
        """Holds on to what an evaluation measured until it is known whether it is worth keeping."""
        self._pass = metrics

    def evaluated(self, metrics: Mapping[str, float]) -> bool:
        """Writes a row of the validation split; returns whether it is the best so far."""
        job, state = self.job, self.state
        self.validation = metrics
        write_row(job, "validation", state.step, state.examples, metrics)
        monitor = job.checkpoint.monitor
        value = metrics[monitor.metric.removeprefix("validation/")]
        best = None if state.best is None else state.best.value
        improved = is_better(value, best, monitor.direction)
        if improved:
            state.best = Best(state.step, state.examples, value, dict(metrics))
            keep_calibration(job, "validation", state.step, self._pass)
        self._pass = None  # its rows take memory
        job.view.evaluated("validation", state.step, metrics, best=improved)
        self.events.evaluated("validation", metrics)
        return improved

    def evaluated_at_end(
        self, split: str, step: int, metrics: Mapping[str, float], seconds: float
    ) -> None:
        examples = self.state.best.examples if self.state.best else self.state.examples
        write_row(self.job, split, step, examples, metrics)
        keep_calibration(self.job, split, step, self._pass)
        self._pass = None
        self.events.evaluated(split, metrics)
        if self.job.run is not None:
            self.job.run.perf.append({"split": split, "step": step, "evaluation_s": seconds})

    def save(self, *, wait: bool = False) -> None:
        """A checkpoint of this step, unless there is one; training goes on once it is copied."""
        job, state = self.job, self.state
        if job.checkpointer is None or job.run is None:
            return
        if self.saved_step != state.step:
            self.events.saving()
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
                    callbacks=job.callbacks.state(),
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
        if state.stopped is not None:
            notes["stopped"] = state.stopped
        return Result(status, state.step, state.examples, flat, best, signal=signal, notes=notes)


def measured(metrics: Metrics, ranks: Ranks) -> tuple[dict[str, float], tuple[str, ...]]:
    """Collective. What the rows of all ranks give, the same on each, and what to say beside it.

    It uses the set up: on rank 0 it holds the rows of all afterwards, so reset or drop it.
    """
    if not ranks.several:
        return metrics.compute(), metrics.notes()
    states = ranks.gather_states(metrics.state())
    if states is not None:
        for state in states[1:]:
            metrics.merge(state)
        return ranks.share((metrics.compute(), metrics.notes()))
    return ranks.share(None)
