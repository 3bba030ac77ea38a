"""loop=online: scores each row of a stream, then trains on it, once (progressive validation)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Prediction
from runner.data.core.dataset import FileOrderDataset
from runner.data.core.dataset_check import is_stream
from runner.models.layers.embedding import TableLookup
from runner.parts import internal, loop_option
from runner.reporting.console.format import format_number, sparkline
from runner.rundir.json_files import iterate_jsonl
from runner.training.job import Job, Result
from runner.training.loops.recorder import Recorder, reduce_metrics
from runner.training.loops.session import run_and_report
from runner.training.loops.start import start_training
from runner.training.loops.verdict import failure_at_end, skipped_in_a_row
from runner.training.profiler import profile_steps
from runner.training.state import TrainState
from runner.training.steps import is_finished, steps
from runner.training.stop_signal import StopSignal
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised, Task

PROGRESSIVE_SPLIT = "progressive"
MAX_SHOWN_WINDOWS = 60  # the picture has up to twice as many bars


@loop_option
def online(job: Job) -> Result:
    """Train on a stream to its end, `trainer.max_steps` or a signal; resume where it stopped.

    Order at update k: score, update, log, save. The metrics of a window (`trainer.log_every`) are
    those of the model before it saw the rows: a validation without end, which shows drift.
    A dataset with an end is read as one pass in the order of its files.
    """
    return run_and_report(job, lambda stop: _online(prepare_stream_job(job), stop))


def prepare_stream_job(job: Job) -> Job:
    """Return the job on a stream, with a task that scores each batch before its update.

    The task is not wrapped if the forward pass of its update gives the same scores.
    """
    if not is_stream(job.dataset):
        job = replace(job, dataset=FileOrderDataset(job.dataset))
    if job.loop_settings["score"] == "auto" and can_reuse_forward(job.task, job.context):
        return job
    return replace(job, task=PrequentialTask(job.task, job.context))


def _online(job: Job, stop: StopSignal) -> Result:
    with job.view.training(job.total_steps or None):
        state = start_training(job)
        if is_stream(job.dataset):
            job.dataset.should_stop = lambda: stop.local_signal is not None  # type: ignore[attr-defined]
        recorder = Recorder(job, state, stop, split=PROGRESSIVE_SPLIT)
        recorder.start()
        updates = steps(
            job,
            state,
            allow_prefetch=False,
            before_update=recorder.callback_runner.call_update_start,
        )
        for output in () if stop.sync_ranks() else profile_steps(job, updates):
            recorder.record_update(output)
            del output
            if recorder.due(job.cadence.log_every) or is_finished(job, state):
                recorder.log()
            if recorder.save_due():
                recorder.save()
            if skipped_in_a_row(job, state) or stop.sync_ranks():
                break
        recorder.save(wait=True)
        recorder.finish_delivery(interrupted=stop.local_signal is not None)
        recorder.callback_runner.raise_failure()
        ended = is_finished(job, state)
        interrupted = stop.sync_ranks() and not ended
        report_open_window(job, state)
    if job.run is not None:
        report_drift(job)
    failure = skipped_in_a_row(job, state)
    if not interrupted:
        failure = failure or failure_at_end(job, state, {recorder.split: state.train_metrics})
    result = recorder.make_result(
        "failed" if failure else "interrupted" if interrupted else "completed",
        {},
        signal=stop.signal if interrupted and not failure else None,
        error=failure,
    )
    if is_stream(job.dataset):  # the position, and whether the same command may continue from it
        result.notes.update(stream_place=state.cursor.place, stream_goes_on=not ended)
    recorder.callback_runner.call_run_end(result)
    return result


def report_open_window(job: Job, state: TrainState) -> None:
    """Show the metrics of the unfinished window, which the next start completes.

    Collective. For a run without a row they are the result.
    """
    count = state.step - max(state.logged_step, 0)
    if not count:
        return
    metrics, _ = reduce_metrics(job.train_metrics, job.context.ranks)  # sync
    shown = "  ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
    job.view.note(f"{count:,} updates of a window that is not full: {shown}")
    state.train_metrics = state.train_metrics or metrics


@dataclass(frozen=True)
class Drift:
    """The loss over a stream: in parts, as a whole, and at its end."""

    losses: list[float]  # of stretches with the same number of windows, in order
    so_far: float  # over all windows
    last: float  # of the last window
    num_windows: int


def compute_drift(rows: Iterable[dict[str, Any]]) -> Drift | None:
    """Compute the drift from the rows of windows, in their order; None if there is none.

    Means leave out windows whose loss is undefined.
    Memory does not grow with the stream: a stretch holds one window at first, and twice as many
    whenever there are `2 * MAX_SHOWN_WINDOWS` stretches.
    """
    stretches: list[tuple[float, int]] = []  # sum of losses, examples
    examples, last, count, per_stretch, filled = 0, 0.0, 0, 1, 0
    for row in rows:
        size, last = row["examples"] - examples, float(row["loss"])
        examples = row["examples"]
        count += 1
        if filled == 0:
            stretches.append((0.0, 0))
        if not math.isnan(last):
            stretches[-1] = (stretches[-1][0] + last * size, stretches[-1][1] + size)
        filled = (filled + 1) % per_stretch
        if filled == 0 and len(stretches) == 2 * MAX_SHOWN_WINDOWS:
            pairs = zip(stretches[::2], stretches[1::2])
            stretches = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
            per_stretch *= 2
    if not examples:
        return None
    losses = [loss / size if size else math.nan for loss, size in stretches]
    defined = sum(size for _, size in stretches)
    so_far = sum(loss for loss, _ in stretches) / defined if defined else math.nan
    return Drift(losses, so_far, last, count)


def report_drift(job: Job) -> None:
    """Show the loss of the windows over the whole stream, restarts included."""
    assert job.run is not None
    rows = iterate_jsonl(job.run.metrics.path)
    drift = compute_drift(row for row in rows if row.get("split") == PROGRESSIVE_SPLIT)
    if drift is None:
        return
    job.view.note(
        f"progressive loss over {drift.num_windows:,} windows: {sparkline(drift.losses)}  "
        f"so far {format_number(drift.so_far)}, last {format_number(drift.last)}"
    )


def can_reuse_forward(task: Task, context: Context) -> bool:
    """Return whether the forward pass of an update equals an evaluation just before it.

    It does if the task is exactly `Supervised`, and no module of the model or the loss depends on
    the training mode, as dropout and batch normalisation do. A module of unknown behaviour counts
    as one that depends on it.
    """
    roots = [context.model, *([context.loss] if isinstance(context.loss, nn.Module) else [])]
    modules = (m for root in roots for m in _outside_tables(root))
    if context.ema is not None and context.ema.use_in_evaluation:
        return False
    plain = type(task) is Supervised and not context.penalties  # its losses contain penalties
    return plain and not any(depends_on_training_mode(m) for m in modules)


def _outside_tables(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, TableLookup):
        return
    yield module
    for child in module.children():
        yield from _outside_tables(child)


def depends_on_training_mode(module: nn.Module) -> bool:
    """Return whether a method of the module's own classes names `training`, or it has hooks."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    return any(
        _names_training(value.__code__)
        for cls in type(module).__mro__
        if cls not in nn.Module.__mro__
        for value in vars(cls).values()
        if isinstance(value, FunctionType)
    )


def _names_training(code: CodeType) -> bool:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return "training" in code.co_names or any(map(_names_training, inner))


@internal
class PrequentialTask:
    """Wraps a task: its output holds predictions that `eval_step` made before the update.

    If the task takes several batches for an update, each is scored when it is taken.
    """

    def __init__(self, task: Task, context: Context) -> None:
        self.task = task
        self._modules = [module for root in context.root_modules() for module in root.modules()]

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        scores: list[tuple[Prediction, dict[str, Tensor]]] = []
        output = self.task.train_step(ctx, self._score_batches(ctx, batches, scores))
        predictions, losses = zip(*scores)
        return replace(output, predictions=predictions, losses=losses)

    def _score_batches(
        self,
        ctx: Context,
        batches: Iterator[Batch],
        scores: list[tuple[Prediction, dict[str, Tensor]]],
    ) -> Iterator[Batch]:
        for batch in batches:
            modes = [module.training for module in self._modules]
            ctx.set_eval_mode()
            with ctx.operation_threads(), ctx.evaluation_weights(), torch.no_grad():
                scores.append(self.task.eval_step(ctx, batch))
            for module, training in zip(self._modules, modes):
                module.training = training
            yield batch

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return self.task.eval_step(ctx, batch)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the wrapped task."""
        return getattr(self.__dict__["task"], name)
