"""loop=tune_batch_size: trials of ever larger batches, by examples a second, within memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from runner.batch import Batch
from runner.distributed.global_batch import (
    batches_per_update,
    global_batch_size,
    rank_batch_size,
)
from runner.errors import UserError
from runner.machine import available_memory_bytes, is_out_of_memory
from runner.reporting.console.format import TextTable
from runner.reporting.console.sparkline import bar
from runner.training.debugging.fixed_batches import FixedBatches, longest_rows, repeat_rows
from runner.training.job import Job, Result
from runner.training.loops.rollback import free_memory
from runner.training.loops.tuner import tune, with_batch_size, write_plot
from runner.training.state import TrainState
from runner.training.steps import steps

MAX_CPU_BATCH_SIZE = 65_536
SCANNED_ROWS = 65_536  # among which the longest lists are looked for
NUM_REAL_BATCHES = 3  # real batches that a trial goes round in
SIZE_MULTIPLE = 8  # sizes are multiples of it
RunTrial = Callable[[int], "BatchSizeTrial"]


@dataclass(frozen=True)
class BatchSizeTrial:
    """Of one size: its speed on all ranks together; None where it did not fit."""

    size: int
    examples_per_s: float | None
    peak_bytes: float = 0.0
    failure: str = ""


@dataclass
class BatchSizeSearch:
    """The trials so far, and the size found."""

    trials: list[BatchSizeTrial] = field(default_factory=list)
    size: int = 0
    end_reason: str = ""

    @property
    def best(self) -> BatchSizeTrial | None:
        fits = [t for t in self.trials if t.examples_per_s is not None]
        return max(fits, key=lambda t: t.examples_per_s or 0, default=None)


def tune_batch_size(job: Job) -> Result:
    """Finds `trainer.batch_size`, rows a rank and micro-batch. Collective.

    Raises: UserError if not even the smallest batch fits into memory.
    """
    return tune(job, _search, lambda job, found: with_batch_size(job, found["batch_size"]))


def _search(job: Job) -> dict[str, Any]:
    settings, ranks = job.loop_settings, job.context.ranks
    batches = batches_per_update(job.trainer.accumulate, ranks.world_size)
    whole = job.dataset.num_rows["train"] // batches
    on_cpu = MAX_CPU_BATCH_SIZE if job.device.type == "cpu" else whole
    cap = max(1, min(settings["max_batch_size"] or on_cpu, whole))
    pool = _pool(job)
    peaks: list[tuple[int, float]] = []

    def attempt(size: int) -> BatchSizeTrial:
        trial = try_size(job, size, pool, peaks)
        job.view.note(_line(trial))
        return trial

    job.view.note(f"batch sizes from {min(settings['start'], cap):,} to {cap:,} rows a rank")
    found = search_batch_size(
        attempt,
        start=min(settings["start"], cap),
        cap=cap,
        max_trials=settings["max_trials"],
        fall_off=settings["fall_off"],
        margin=settings["margin"],
    )
    _tell(job, found)
    assert found.best is not None
    return {"batch_size": found.size, "examples_per_s": round(found.best.examples_per_s or 0.0, 1)}


def search_batch_size(
    run_trial: RunTrial, *, start: int, cap: int, max_trials: int, fall_off: float, margin: float
) -> BatchSizeSearch:
    """Doubles up to the cap, or until memory or speed says stop; then bisects back.

    The result is the fastest size tried, but at least `margin` below the smallest that did not fit.
    Raises: UserError if none fits.
    """
    found, size = BatchSizeSearch(), start
    low, high = 0, 0  # fits, and is not too slow; does not, or is
    while len(found.trials) < max_trials:
        best = found.best
        trial = run_trial(size)
        found.trials.append(trial)
        found.end_reason = reason_to_stop(trial, best, fall_off)
        if found.end_reason:
            high = size
            break
        low = size
        if size >= cap:
            found.end_reason = f"the cap of {cap:,} rows"
            break
        size = min(2 * size, cap)
    while high and len(found.trials) < max_trials:
        middle = (
            (low + high) // 2 // SIZE_MULTIPLE * SIZE_MULTIPLE
            if high > SIZE_MULTIPLE
            else (low + high) // 2
        )
        if not low < middle < high or high - low <= low // 8:
            break
        trial = run_trial(middle)
        best = found.best
        found.trials.append(trial)
        if reason_to_stop(trial, best, fall_off):
            high = middle
        else:
            low = middle
    return _chosen(found, margin)


def reason_to_stop(trial: BatchSizeTrial, best: BatchSizeTrial | None, fall_off: float) -> str:
    """Why to go no further than this trial; empty if there is no reason."""
    if trial.examples_per_s is None:
        return trial.failure
    if best and trial.examples_per_s < (best.examples_per_s or 0.0) * (1 - fall_off):
        return "the speed falls off"
    return ""


def _chosen(found: BatchSizeSearch, margin: float) -> BatchSizeSearch:
    if found.best is None:
        smallest = min(t.size for t in found.trials)
        raise UserError(f"a batch of {smallest:,} rows does not fit into memory: nothing was found")
    found.end_reason = found.end_reason or f"{len(found.trials)} trials"
    limit = min((t.size for t in found.trials if t.examples_per_s is None), default=None)
    found.size = found.best.size
    if limit is not None:
        most = max(1, int(limit * (1 - margin)))
        found.size = min(found.size, most // SIZE_MULTIPLE * SIZE_MULTIPLE or most)
    return found


def _pool(job: Job) -> Batch:
    """The rows with the most ids, of the first ones of an epoch."""
    count = min(SCANNED_ROWS, job.dataset.num_rows["train"])
    return longest_rows(next(job.dataset.batches("train", batch_size=count, seed=job.seed)))


def try_size(job: Job, size: int, pool: Batch, peaks: list[tuple[int, float]]) -> BatchSizeTrial:
    """Collective. A worst-case update, then timed ones on real batches; no reading is timed.

    peaks: sizes and memory of the trials before, from which a trial that must fail is foreseen: on
    CPU running out of memory kills the process, and among ranks it leaves the others waiting.
    """
    ranks = job.context.ranks
    if ranks.all_reduce_max(predict_peak_bytes(peaks, size) > _limit_bytes(job)):
        return BatchSizeTrial(size, None, failure="memory would not do, by the trials before")
    updates = job.loop_settings["updates"]
    rows = rank_batch_size(size, job.trainer.accumulate)
    job.context.micro_batch_size = size
    try:
        batches = islice(
            job.dataset.batches(
                "train",
                batch_size=rows,
                seed=job.seed,
                rank=ranks.rank,
                world_size=ranks.world_size,
            ),
            NUM_REAL_BATCHES,
        )
        real = [batch for batch in batches if batch.size == rows]
        trial_job = replace(
            job,
            trainer=replace(job.trainer, batch_size=size, max_steps=1 + updates, max_epochs=None),
            dataset=FixedBatches(job.dataset, repeat_rows(pool, rows), real),
        )
        times_s = []
        if job.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(job.device)
        stream = steps(trial_job, TrainState())
        for _ in range(1 + updates):
            started = time.perf_counter()
            next(stream)
            if job.device.type == "cuda":
                torch.cuda.synchronize(job.device)  # sync: time is what is looked for
            times_s.append(ranks.all_reduce_max(time.perf_counter() - started))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or ranks.is_distributed:
            raise
        free_memory(job.device)
        return BatchSizeTrial(size, None, failure="out of memory")
    peak = ranks.all_reduce_max(_peak_bytes(job))
    peaks.append((size, peak))
    # the quickest: whatever else the machine does can only slow an update down
    update_rows = global_batch_size(size, job.trainer.accumulate, ranks.world_size)
    return BatchSizeTrial(size, update_rows / min(times_s[1:]), peak)


def predict_peak_bytes(peaks: list[tuple[int, float]], size: int) -> float:
    """The peak of a size by a line through the last two; 0: not enough is known."""
    if len(peaks) < 2:
        return 0.0
    (small, low), (large, high) = sorted(peaks)[-2:]
    return high + max(0.0, high - low) / (large - small) * (size - large)


def _peak_bytes(job: Job) -> float:
    if job.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(job.device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _limit_bytes(job: Job) -> float:
    """What this process may have at most, less the margin."""
    keep = 1 - job.loop_settings["margin"]
    if job.device.type == "cuda":
        return keep * torch.cuda.get_device_properties(job.device).total_memory
    return keep * (_peak_bytes(job) + available_memory_bytes())


def _line(trial: BatchSizeTrial) -> str:
    if trial.examples_per_s is None:
        return f"{trial.size:>9,} rows: {trial.failure}"
    return f"{trial.size:>9,} rows: {trial.examples_per_s:,.0f} examples/s"


def _tell(job: Job, found: BatchSizeSearch) -> None:
    """The table of all trials, as bars, and a page with the picture."""
    trials = sorted(found.trials, key=lambda t: t.size)
    most = max(t.examples_per_s or 0.0 for t in trials)
    rows = [
        [
            f"{t.size:,}",
            f"{t.examples_per_s:,.0f}" if t.examples_per_s is not None else t.failure,
            f"{t.peak_bytes / 2**20:,.0f}" if t.examples_per_s is not None else "",
        ]
        for t in trials
    ]
    lines = TextTable(["batch_size", "examples/s", "peak MiB"], rows).lines()
    bars = ["", *(bar(t.examples_per_s or 0.0, most) for t in trials)]
    marks = ["", *("  <- chosen" if t.size == found.size else "" for t in trials)]
    for line, drawn, mark in zip(lines, bars, marks):
        job.view.note(f"{line}  {drawn}{mark}".rstrip())
    job.view.note(f"ended by: {found.end_reason}; trainer.batch_size={found.size}")
    fits = [t for t in trials if t.examples_per_s is not None]
    write_plot(
        job,
        "tune_batch_size",
        lambda go: go.Figure(
            go.Scatter(x=[t.size for t in fits], y=[t.examples_per_s for t in fits]),
            {
                "title": f"batch size: {found.size:,}, ended by {found.end_reason}",
                "xaxis": {"title": "rows a rank and micro-batch", "type": "log"},
                "yaxis": {"title": "examples a second", "rangemode": "tozero"},
            },
        ),
    )
