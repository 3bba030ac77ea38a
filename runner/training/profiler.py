"""`trainer.profile`: torch's profiler over a window of updates, as a trace and a table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch.profiler import ProfilerActivity, profile

from runner.reporting.console.format import TextTable
from runner.training.job import Job
from runner.training.update.task import StepOutput

NUM_OPERATORS = 15  # in the table


def profile_steps(job: Job, outputs: Iterator[StepOutput]) -> Iterator[StepOutput]:
    """The same updates; those of the window, counted in this process, are recorded.

    What happens between two of them (logging, evaluation, saving) is in the trace too. Changes no
    number. When the window is over, or the training ends within it, `profile/` of the run gets
    `rank-R.json` for Perfetto or chrome://tracing, and `rank-R.txt` with the dearest operators.
    """
    window = job.trainer.profile
    if not window.updates or job.run is None:
        yield from outputs
        return
    before = 0
    for output in islice(outputs, window.after):
        before += 1
        yield output
    if before < window.after:
        return warn_nothing_recorded(job)
    activities = [ProfilerActivity.CPU]
    if job.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    recorder = profile(activities=activities)
    count = 0
    recorder.start()
    try:
        for output in islice(outputs, window.updates):
            count += 1
            yield output
    finally:
        recorder.stop()
        write_profile(job, recorder, count)
    yield from outputs


def write_profile(job: Job, recorder: profile, num_updates: int) -> None:
    """The trace and the table into the run directory, and the table to people."""
    assert job.run is not None
    if not num_updates:
        return warn_nothing_recorded(job)
    folder = job.run.dir / "profile"
    folder.mkdir(exist_ok=True)
    name = f"rank-{job.context.ranks.rank}"
    trace = folder / f"{name}.json"
    recorder.export_chrome_trace(str(trace))
    lines = operator_table(recorder, num_updates, on_device=job.device.type == "cuda").lines()
    (folder / f"{name}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    told = "\n".join("  " + line for line in lines)
    job.view.note(f"profile of {num_updates} updates: {trace}\n{told}")


def warn_nothing_recorded(job: Job) -> None:
    after = job.trainer.profile.after
    job.view.warn(f"trainer.profile.after={after}: nothing is recorded: the training ended before")


def operator_table(recorder: profile, num_updates: int, *, on_device: bool) -> TextTable:
    """The operators that took most, without those that they called, an update each."""
    events = recorder.key_averages()

    def own_us(event) -> float:
        return float(event.self_device_time_total if on_device else event.self_cpu_time_total)

    total_us = sum(map(own_us, events)) or 1.0
    dearest = sorted(events, key=own_us, reverse=True)[:NUM_OPERATORS]
    clock = "device" if on_device else "CPU"
    rows = [
        [
            event.key,
            f"{event.count / num_updates:.1f}",
            f"{own_us(event) / num_updates / 1000:.3f}",
            f"{own_us(event) / total_us:.1%}",
        ]
        for event in dearest
        if own_us(event)
    ]
    return TextTable(["operator", "calls", f"own {clock} ms", "share"], rows)
