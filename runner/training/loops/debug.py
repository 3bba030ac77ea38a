"""loop=debug: makes a few updates and observes them closely. Nothing is saved."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from runner.config.settings import DebugLoopSettings
from runner.models.layers.embedding import TableLookup
from runner.parts import loop_option
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

_ANOMALY_WARNING = "Error detected in "  # beginning of the warning of torch's anomaly detection
_ANOMALY_ERROR = "returned nan values"  # part of its error


@dataclass(frozen=True)
class DebugObservers:
    """The observers of the updates, and what they observe.

    An observer that the options do not ask for is None.
    """

    modules: dict[str, nn.Module]
    hooked: dict[str, nn.Module]  # all modules, or none if no observer looks inside the model
    parameters: dict[str, nn.Parameter]
    dispatcher: HookDispatcher
    norms: GradientNorms
    non_finite: NonFiniteDetector | None
    statistics: ActivationStatistics | None
    timer: ModuleTimer | None


@dataclass
class DebugOutcome:
    """The loss of each update, and the error that ended them early, if one did."""

    losses: list[float]
    step: int = 0  # the last update that was begun
    error: str | None = None


@loop_option
def debug(job: Job) -> Result:
    """Make `loop.max_steps` updates from where a training would start, and report each.

    With `run=DIR` or `checkpoint.path=DIR` it starts from that checkpoint's whole state, so that
    it repeats the updates that the training made after it. Writes no file. The status is failed if
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
        observers = make_observers(job, options)
        job = replace(job, dataset=ObservedDataset(job.dataset, observers.dispatcher))
        job.view.note(describe_debug_run(job, state, observers))
        skipped_before = state.skipped
        with attach_hooks(observers.dispatcher, observers.hooked, observers.parameters):
            outcome = run_updates(job, state, observers, options, stop)
        report_tables(job, observers, outcome)
    if options.overfit_one_batch:
        report_overfit(job, outcome.losses)
    if outcome.error is not None:
        job.view.warn(outcome.error)
    interrupted = stop.requested and not outcome.error and not is_finished(job, state)
    return Result(
        status="failed" if outcome.error else "interrupted" if interrupted else "completed",
        step=state.step,
        examples=state.examples,
        metrics={"train/loss": outcome.losses[-1]} if outcome.losses else {},
        error=outcome.error,
        signal=stop.signal if interrupted else None,
        notes={"losses": outcome.losses, "skipped_updates": state.skipped - skipped_before},
    )


def prepare_debug_job(job: Job, state: TrainState, options: DebugLoopSettings) -> Job:
    """Return the job with the loop's own length and batches, also if its training had stopped."""
    state.stopped = None
    if job.context.row_threads is not None:
        job.context.row_threads.one_at_a_time = True  # so that a debugger can stop anywhere
    last_step = state.step + options.max_steps
    # the schedule of a run of epochs goes by examples, but each update of one batch is an epoch
    max_epochs = None if options.overfit_one_batch else job.trainer.max_epochs
    trainer = replace(job.trainer, max_steps=last_step, max_epochs=max_epochs)
    dataset = job.dataset
    if options.overfit_one_batch:
        dataset = SingleBatchDataset(dataset, start=state.cursor)
    return replace(job, trainer=trainer, dataset=dataset)


def make_observers(job: Job, options: DebugLoopSettings) -> DebugObservers:
    """Make the observers that the options ask for."""
    context = job.context
    roots = {"": context.model, "(loss)": context.loss, "(task)": job.task}
    roots |= {f"(task) {name}": module for name, module in context.task_modules.items()}
    modules, parameters = collect_modules(roots), collect_parameters(roots)
    scale = (lambda: float(s.state[0])) if (s := context.loss_scale) else (lambda: 1.0)
    norms = GradientNorms(scale)
    timer = ModuleTimer() if options.summary else None
    statistics = ActivationStatistics(modules, scale) if options.statistics else None
    non_finite = None
    if options.stop_at_nonfinite:
        non_finite = NonFiniteDetector(modules, parameters, job.dataset.schema)
    # the detector, which may raise, comes last: the others have then seen what it raises about
    optional: list[Observer] = [o for o in (timer, statistics, non_finite) if o is not None]
    dispatcher = HookDispatcher([norms, *optional], device=job.device)
    if timer is not None:
        timer.dispatcher = dispatcher
    return DebugObservers(
        modules=modules,
        hooked=modules if optional else {},
        parameters=parameters,
        dispatcher=dispatcher,
        norms=norms,
        non_finite=non_finite,
        statistics=statistics,
        timer=timer,
    )


def run_updates(
    job: Job,
    state: TrainState,
    observers: DebugObservers,
    options: DebugLoopSettings,
    stop: StopSignal,
) -> DebugOutcome:
    """Make all updates, or those up to the first value that is not finite.

    Raises:
        RuntimeError: if an update fails for another reason than anomaly detection.
    """
    outcome = DebugOutcome([])
    stream = steps(job, state, allow_prefetch=False)  # observers see the batch of this update
    with anomaly_detection(options.anomaly) as traces:
        while outcome.error is None and not is_finished(job, state) and not stop.requested:
            outcome.step = state.step + 1
            active = [o for o in (observers.norms, observers.statistics) if o is not None]
            before = [dict(vars(observer)) for observer in active]  # of the last update
            observers.dispatcher.step_begins()
            try:
                output = next(stream, None)
                if output is None:  # the stream has ended: the tables are of the update before
                    outcome.step = state.step
                    for observer, values in zip(active, before):
                        vars(observer).update(values)
                    break
                observers.dispatcher.step_ends()
                outcome.losses.append(report_update(job, state, observers, output))
                if observers.non_finite is not None:
                    scaled = job.context.loss_scale is not None
                    observers.non_finite.check_update(output, scaled=scaled)
            except NonFiniteError as error:
                outcome.error = f"step {outcome.step:,}: {error}"
            except RuntimeError as error:
                if not options.anomaly or _ANOMALY_ERROR not in str(error):
                    raise
                line = find_user_line_in_traceback(traces[-1]) if traces else ""
                place = f"; called at {line}" if line else ""
                outcome.error = f"step {outcome.step:,}: {str(error).rstrip('.')}{place}"
            timer = observers.timer
            if timer is not None and len(outcome.losses) == 1 and not is_finished(job, state):
                timer.reset()  # the first update also warms caches and threads up
    return outcome


@contextmanager
def anomaly_detection(on: bool) -> Iterator[list[str]]:
    """Turn torch's anomaly detection on, if `on`, and put it back afterwards.

    Yields:
        A list that collects the tracebacks of the forward calls that it complains about.
    """
    traces: list[str] = []
    if not on:
        yield traces
        return
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        show_warning = warnings.showwarning

        def collect(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if str(message).startswith(_ANOMALY_WARNING):
                traces.append(str(message))
            else:
                show_warning(message, *args, **kwargs)

        warnings.filterwarnings("always", message=_ANOMALY_WARNING)
        warnings.showwarning = collect
        yield traces


def describe_debug_run(job: Job, state: TrainState, observers: DebugObservers) -> str:
    """Describe the model and the updates in two lines."""
    in_tables = sum(
        count_own_parameters(m) for m in observers.modules.values() if isinstance(m, TableLookup)
    )
    dense = sum(p.numel() for p in observers.parameters.values())
    dtype = job.context.amp_dtype
    precision = "float32" if dtype is None else f"autocast {str(dtype).removeprefix('torch.')}"
    rows = f"{job.trainer.batch_size:,}"
    if job.trainer.accumulate > 1:
        rows += f" x {job.trainer.accumulate}"
    name = type(job.context.model).__name__
    start = f"from step {state.step:,} on, " if state.step else ""
    return (
        f"debug: {name}, {in_tables:,} weights in tables, {dense:,} others\n"
        f"{start}{rows} rows an update, {precision} on {job.device.type}; nothing is saved"
    )


def report_update(
    job: Job, state: TrainState, observers: DebugObservers, output: StepOutput
) -> float:
    """Show a line for the update, and return its loss. Synchronises."""
    losses = mean_losses(output)
    loss = sum(losses.values())
    parts = ", ".join(f"{name} {format_number(part)}" for name, part in losses.items())
    last = job.trainer.max_steps or state.step
    facts = [
        f"step {state.step:>{len(f'{last:,}')},}",
        f"loss {format_number(loss)}" + (f" ({parts})" if len(losses) > 1 else ""),
    ]
    norm = observers.norms.total()
    if norm is not None:
        facts.append(f"gradient {format_number(norm)}")
    facts.append(f"{output.rows_B.numel() / observers.dispatcher.step_s:,.0f} examples/s")
    if not output.applied:
        facts.append("skipped: a gradient is not finite")
    job.view.note("  ".join(facts))
    return loss


def report_tables(job: Job, observers: DebugObservers, outcome: DebugOutcome) -> None:
    """Show the tables that the options ask for, about the last update that was begun."""
    step, tables = outcome.step, []
    statistics, modules, parameters = observers.statistics, observers.modules, observers.parameters
    if statistics is not None:
        tables.append(activation_table(statistics, modules, step))
        tables.append(gradient_table(statistics, observers.norms, modules, parameters, step))
        tables += lookup_tables(statistics, modules, step)
    if observers.timer is not None:
        tables.append(summary_table(modules, parameters, observers.timer))
    for title, table in tables:
        job.view.note("\n".join(["", title, *(f"  {line}" for line in table.lines())]))


def report_overfit(job: Job, losses: list[float]) -> None:
    """Say whether the loss fell in updates of one batch."""
    if len(losses) < 2:
        job.view.warn(
            "loop.overfit_one_batch: one update cannot tell whether the loss falls; "
            "loop.max_steps=20 makes more"
        )
        return
    change = (
        f"from {format_number(losses[0])} to {format_number(losses[-1])} "
        f"in {len(losses):,} updates of one batch"
    )
    if losses[-1] < losses[0]:
        job.view.note(f"\nthe loss fell {change}")
    else:
        job.view.warn(
            f"the loss did not fall: {change}; try a higher optimizer.dense.lr, or more "
            "loop.max_steps"
        )
