"""loop=debug: a few updates, looked at closely. Nothing is saved."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from runner.config.settings import DebugLoopSettings
from runner.models.layers.embedding import TableLookup
from runner.reporting.console.format import format_number
from runner.training.debugging.fixed_batches import SingleBatchDataset
from runner.training.debugging.hooks import (
    HookDispatcher,
    ObservedDataset,
    Observer,
    attach_hooks,
    collect_modules,
    collect_parameters,
)
from runner.training.debugging.losses import mean_losses
from runner.training.debugging.non_finite import NonFiniteDetector, NonFiniteError
from runner.training.debugging.statistics import ActivationStatistics, GradientNorms
from runner.training.debugging.text_tables import (
    activation_table,
    count_own_parameters,
    gradient_table,
    lookup_tables,
    summary_table,
)
from runner.training.debugging.timing import ModuleTimer
from runner.training.debugging.user_code import find_user_line_in_traceback
from runner.training.job import Job, Result
from runner.training.loops.start import start_training
from runner.training.state import TrainState, restore_checkpoint
from runner.training.steps import is_finished, steps
from runner.training.stop_signal import StopSignal, stop_on_signals
from runner.training.update.task import StepOutput

_ANOMALY_TRACE = "Error detected in "  # how torch's warning begins
_ANOMALY_FOUND = "returned nan values"  # and its error


@dataclass(frozen=True)
class DebugObservers:
    """The observers of one debugging; None where the options do not ask for one."""

    modules: dict[str, nn.Module]
    hooked: dict[str, nn.Module]  # of these, or none where no observer looks inside the model
    parameters: dict[str, nn.Parameter]
    dispatcher: HookDispatcher
    norms: GradientNorms
    non_finite: NonFiniteDetector | None
    statistics: ActivationStatistics | None
    timer: ModuleTimer | None


@dataclass
class DebugOutcome:
    """What came of it: the loss of each update, and why it stopped early, if it did."""

    losses: list[float]
    step: int = 0  # the last that was begun
    error: str | None = None


def debug(job: Job) -> Result:
    """Makes `loop.max_steps` updates from where a training would start, and tells of each.

    With `run=DIR` or `checkpoint.path=DIR` it starts from that checkpoint's whole state, so that
    its updates are those that the training made after it. Writes no file. The status is failed if
    a value was not finite and the options say to stop there.
    """
    options = DebugLoopSettings(**job.loop_settings)
    job = replace(job, run=None, checkpointer=None)
    with stop_on_signals() as stop:
        state = (
            restore_checkpoint(job, job.source_checkpoint)
            if job.source_checkpoint is not None
            else start_training(job)
        )
        job = prepare_debug_job(job, state, options)
        look = make_observers(job, options)
        job = replace(job, dataset=ObservedDataset(job.dataset, look.dispatcher))
        job.view.note(describe_debug_run(job, state, look))
        skipped_before = state.skipped
        with attach_hooks(look.dispatcher, look.hooked, look.parameters):
            seen = run_updates(job, state, look, options, stop)
        report_tables(job, look, seen)
    if options.overfit_one_batch:
        report_overfit(job, seen.losses)
    if seen.error is not None:
        job.view.warn(seen.error)
    interrupted = stop.requested and not seen.error and not is_finished(job, state)
    return Result(
        status="failed" if seen.error else "interrupted" if interrupted else "completed",
        step=state.step,
        examples=state.examples,
        metrics={"train/loss": seen.losses[-1]} if seen.losses else {},
        error=seen.error,
        signal=stop.signal if interrupted else None,
        notes={"losses": seen.losses, "skipped_updates": state.skipped - skipped_before},
    )


def prepare_debug_job(job: Job, state: TrainState, options: DebugLoopSettings) -> Job:
    """The job with the loop's own length and batches."""
    last_step = state.step + options.max_steps
    trainer = replace(job.trainer, max_steps=last_step, max_epochs=None)
    dataset = job.dataset
    if options.overfit_one_batch:
        dataset = SingleBatchDataset(dataset, start=state.cursor)
    return replace(job, trainer=trainer, dataset=dataset)


def make_observers(job: Job, options: DebugLoopSettings) -> DebugObservers:
    """The observers that the options ask for."""
    context = job.context
    roots = {"": context.model, "(loss)": context.loss, "(task)": job.task}
    roots |= {f"(task) {name}": module for name, module in context.task_modules.items()}
    modules, parameters = collect_modules(roots), collect_parameters(roots)
    scale = (lambda: float(s.state[0])) if (s := context.loss_scale) else (lambda: 1.0)
    norms = GradientNorms(scale)
    times = ModuleTimer() if options.summary else None
    statistics = ActivationStatistics(modules, scale) if options.statistics else None
    finite = None
    if options.stop_at_nonfinite:
        finite = NonFiniteDetector(modules, parameters, job.dataset.schema)
    chosen: list[Observer] = [o for o in (times, statistics, finite) if o is not None]
    # last in line is who may raise: the others have then seen what it raises about
    watch = HookDispatcher([norms, *chosen], device=job.device)
    if times is not None:
        times.dispatcher = watch
    hooked = modules if chosen else {}
    return DebugObservers(modules, hooked, parameters, watch, norms, finite, statistics, times)


def run_updates(
    job: Job, state: TrainState, look: DebugObservers, options: DebugLoopSettings, stop: StopSignal
) -> DebugOutcome:
    """All updates, or those up to the first value that is not finite."""
    seen = DebugOutcome([])
    stream = steps(job, state, allow_prefetch=False)  # an observer sees the batch that is learnt
    with anomaly_detection(options.anomaly) as traces:
        while seen.error is None and not is_finished(job, state) and not stop.requested:
            seen.step = state.step + 1
            look.dispatcher.step_begins()
            try:
                output = next(stream)
                look.dispatcher.step_ends()
                seen.losses.append(report_update(job, state, look, output))
                if look.non_finite is not None:
                    scaled = job.context.loss_scale is not None
                    look.non_finite.check_update(output, scaled=scaled)
            except NonFiniteError as found:
                seen.error = f"step {seen.step:,}: {found}"
            except RuntimeError as found:
                if not options.anomaly or _ANOMALY_FOUND not in str(found):
                    raise
                line = find_user_line_in_traceback(traces[-1]) if traces else ""
                place = f"; called at {line}" if line else ""
                seen.error = f"step {seen.step:,}: {str(found).rstrip('.')}{place}"
            if look.timer is not None and len(seen.losses) == 1 and not is_finished(job, state):
                look.timer.reset()  # the first update warms caches and threads up
    return seen


@contextmanager
def anomaly_detection(on: bool) -> Iterator[list[str]]:
    """Torch's, as it was afterwards. Yields the tracebacks of the forward calls it complains of."""
    traces: list[str] = []
    if not on:
        yield traces
        return
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        others = warnings.showwarning

        def keep(message, *where, **more) -> None:  # type: ignore[no-untyped-def]
            if str(message).startswith(_ANOMALY_TRACE):
                traces.append(str(message))
            else:
                others(message, *where, **more)

        warnings.filterwarnings("always", message=_ANOMALY_TRACE)
        warnings.showwarning = keep
        yield traces


def describe_debug_run(job: Job, state: TrainState, look: DebugObservers) -> str:
    """What is looked at."""
    in_tables = sum(
        count_own_parameters(m) for m in look.modules.values() if isinstance(m, TableLookup)
    )
    dense = sum(p.numel() for p in look.parameters.values())
    dtype = job.context.amp_dtype
    precision = "float32" if dtype is None else f"autocast {str(dtype).removeprefix('torch.')}"
    rows = f"{job.trainer.batch_size:,}"
    if job.trainer.accumulate > 1:
        rows += f" x {job.trainer.accumulate}"
    name = type(job.context.model).__name__
    begun = f"from step {state.step:,} on, " if state.step else ""
    return (
        f"debug: {name}, {in_tables:,} weights in tables, {dense:,} others\n"
        f"{begun}{rows} rows an update, {precision} on {job.device.type}; nothing is saved"
    )


def report_update(job: Job, state: TrainState, look: DebugObservers, output: StepOutput) -> float:
    """A line for the update; returns its loss."""
    losses = mean_losses(output)
    loss = sum(losses.values())
    parts = ", ".join(f"{name} {format_number(part)}" for name, part in losses.items())
    last = job.trainer.max_steps or state.step
    facts = [
        f"step {state.step:>{len(f'{last:,}')},}",
        f"loss {format_number(loss)}" + (f" ({parts})" if len(losses) > 1 else ""),
    ]
    norm = look.norms.total()
    if norm is not None:
        facts.append(f"gradient {format_number(norm)}")
    facts.append(f"{output.rows_B.numel() / look.dispatcher.step_s:,.0f} examples/s")
    if not output.applied:
        facts.append("skipped: a gradient is not finite")
    job.view.note("  ".join(facts))
    return loss


def report_tables(job: Job, look: DebugObservers, seen: DebugOutcome) -> None:
    """The tables that the options ask for, of the last update begun."""
    step, tables = seen.step, []
    if look.statistics is not None:
        tables.append(activation_table(look.statistics, look.modules, step))
        tables.append(
            gradient_table(look.statistics, look.norms, look.modules, look.parameters, step)
        )
        tables += lookup_tables(look.statistics, look.modules, step)
    if look.timer is not None:
        tables.append(summary_table(look.modules, look.parameters, look.timer))
    for title, table in tables:
        job.view.note("\n".join(["", title, *(f"  {line}" for line in table.lines())]))


def report_overfit(job: Job, losses: list[float]) -> None:
    if len(losses) < 2:
        job.view.warn("overfit_one_batch: one update cannot tell whether the loss falls")
        return
    change = f"from {format_number(losses[0])} to {format_number(losses[-1])} in {len(losses):,} updates of one batch"
    if losses[-1] < losses[0]:
        job.view.note(f"\nthe loss fell {change}")
    else:
        job.view.warn(f"the loss did not fall: {change}; a higher learning rate or more updates?")
