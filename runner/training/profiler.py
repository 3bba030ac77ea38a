"""`trainer.profile`: records a window of updates by torch's profiler, as a trace and a table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.profiler import ProfilerActivity, profile

from runner.reporting.console.format import TextTable
from runner.rundir.json_files import write_text
from runner.rundir.secrets import mask_secrets
from runner.training.job import Job
from runner.training.update.task import StepOutput

NUM_OPERATORS = 15  # in the table
_LONGEST_NAME = 60  # a GPU's kernels have their types in their names


def profile_steps(job: Job, outputs: Iterator[StepOutput]) -> Iterator[StepOutput]:
    """Yield the same updates, and record those of the window, counted in this process.

    Work between two updates (logging, evaluation, saving) is in the trace, too. Results change only
    by rounding, if a model with batch norms is now computed by one thread instead of several. After
    the window, or if the training ends within it, `profile/` of the run gets `rank-R.json` for
    Perfetto or chrome://tracing, and `rank-R.txt` with the slowest operators.
    """
    window = job.trainer.profile
    if not window.updates or job.run is None:
        yield from outputs
        return
    num_before = 0
    for output in islice(outputs, window.after):
        num_before += 1
        yield output
    if num_before < window.after:
        return warn_nothing_recorded(job)
    activities = [ProfilerActivity.CPU]
    if job.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    recorder = profile(activities=activities)
    num_recorded = 0
    recorder.start()
    try:
        for output in islice(outputs, window.updates):
            num_recorded += 1
            yield output
    finally:
        recorder.stop()
        write_profile(job, recorder, num_recorded)
    yield from outputs


def write_profile(job: Job, recorder: profile, num_updates: int) -> None:
    """Write the trace and the table into the run directory, and show the table."""
    assert job.run is not None
    if not num_updates:
        return warn_nothing_recorded(job)
    folder = job.run.dir / "profile"
    folder.mkdir(exist_ok=True)
    name = f"rank-{job.context.ranks.rank}"
    trace = folder / f"{name}.json"
    recorder.export_chrome_trace(str(trace))
    lines = operator_table(recorder, num_updates, on_device=job.device.type == "cuda").lines()
    write_text(folder / f"{name}.txt", mask_secrets("\n".join([*lines, ""])))
    table = "\n".join("  " + line for line in lines)
    job.view.note(f"profile of {num_updates} updates: {trace}\n{table}")


def warn_nothing_recorded(job: Job) -> None:
    """Warn that the training ended before the window began."""
    after = job.trainer.profile.after
    job.view.warn(
        f"trainer.profile.after={after}: nothing is recorded: the training ended before; "
        "take a smaller one"
    )


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def operator_table(recorder: profile, num_updates: int, *, on_device: bool) -> TextTable:
    """Return the slowest operators by their own time per update, without the ones they called."""
    # a kernel's time counts for the operator that launched it
    events = [e for e in recorder.key_averages() if e.device_type.name == "CPU"]

    def own_us(event: Any) -> float:
        return float(event.self_device_time_total if on_device else event.self_cpu_time_total)

    total_us = sum(map(own_us, events)) or 1.0
    slowest = sorted(events, key=own_us, reverse=True)[:NUM_OPERATORS]
    clock = "device" if on_device else "CPU"
    rows = [
        [
            _cut(event.key),
            f"{event.count / num_updates:.1f}",
            f"{own_us(event) / num_updates / 1000:.3f}",
            f"{own_us(event) / total_us:.1%}",
        ]
        for event in slowest
        if own_us(event)
    ]
    return TextTable(["operator", "calls", f"own {clock} ms", "share"], rows)
