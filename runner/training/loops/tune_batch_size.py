"""loop=tune_batch_size: finds the fastest batch size that fits into memory, by trials."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from runner.batch import Batch
from runner.distributed.global_batch import batches_per_update, global_batch_size, rank_batch_size
from runner.errors import ConfigError, UserError
from runner.machine.free_memory import available_memory_bytes, is_out_of_memory
from runner.parts import loop_option
from runner.rundir.run import revert_resume
from runner.rundir.run_files import TUNED_FILE
from runner.training.debugging.fixed_batches import FixedBatches, longest_rows, repeat_rows
from runner.training.job import Job, Result
from runner.training.loops.rollback import free_memory
from runner.training.loops.tuner import (
    TrialRow,
    TunedValues,
    TuningReport,
    show_report,
    tune,
    with_batch_size,
)
from runner.training.state import TrainState
from runner.training.steps import steps

MAX_CPU_BATCH_SIZE = 65_536
SCANNED_ROWS = 65_536  # in which the rows with the longest lists are looked for
NUM_REAL_BATCHES = 3  # that a trial uses in turn
SIZE_MULTIPLE = 8  # sizes between two trials are multiples of it


@dataclass(frozen=True)
class BatchSizeTrial:
    """A batch size that was tried: its speed over all ranks, or why it failed."""

    size: int
    examples_per_s: float | None  # None: it did not fit into memory
    peak_bytes: float = 0.0
    failure: str = ""

    def describe_speed(self) -> str:
        """Return the speed, or why there is none."""
        return self.failure if self.examples_per_s is None else f"{self.examples_per_s:,.0f}"


@dataclass
class BatchSizeSearch:
    """The trials so far, and the size that is chosen."""

    trials: list[BatchSizeTrial] = field(default_factory=list)
    size: int = 0
    end_reason: str = ""

    @property
    def best(self) -> BatchSizeTrial | None:
        """The fastest trial; None if none fitted."""
        return max(self.fitting, key=lambda t: t.examples_per_s or 0, default=None)

    @property
    def fitting(self) -> list[BatchSizeTrial]:
        """The trials that fitted into memory."""
        return [t for t in self.trials if t.examples_per_s is not None]


@loop_option
def tune_batch_size(job: Job) -> Result:
    """Find `trainer.batch_size`, the rows of a rank and micro-batch.

    Collective.

    Raises:
        UserError: if not even the smallest batch fits into memory.
        ConfigError: if a resume on other ranks cannot share the rows that were found.
    """
    return tune(job, _find_size, _with_tuned_size)


def _with_tuned_size(job: Job, tuned: TunedValues) -> Job:
    """Return the job with the rows of an update that were found, on as many ranks as it has now.

    Raises:
        ConfigError: if these cannot share the rows evenly; the resume is reverted.
    """
    num_parts = batches_per_update(job.trainer.accumulate, job.context.ranks.world_size)
    rows = tuned.get("update_rows", tuned["batch_size"] * num_parts)  # earlier versions had none
    if rows % num_parts:
        reason = (
            f"{TUNED_FILE}: an update of this run has {rows:,} rows, which {num_parts} ranks and "
            "micro-batches cannot share evenly; choose numbers that divide them"
        )
        if job.run is not None:
            revert_resume(job.run, reason)
        raise ConfigError(reason)
    size: int = rows // num_parts
    if size != tuned["batch_size"]:
        job.view.note(f"an update keeps its {rows:,} tuned rows: trainer.batch_size={size}")
    return with_batch_size(job, size)


def _find_size(job: Job) -> TunedValues:
    settings, ranks = job.loop_settings, job.context.ranks
    batches = batches_per_update(job.trainer.accumulate, ranks.world_size)
    all_rows = job.dataset.num_rows["train"] // batches
    default_cap = MAX_CPU_BATCH_SIZE if job.device.type == "cpu" else all_rows
    cap = max(1, min(settings["max_batch_size"] or default_cap, all_rows))
    count = min(SCANNED_ROWS, job.dataset.num_rows["train"])
    batches_of_pool = job.dataset.batches("train", batch_size=count, seed=job.seed)
    pool = longest_rows(next(iter(batches_of_pool)))
    peaks: list[tuple[int, float]] = []

    def run_trial(size: int) -> BatchSizeTrial:
        trial = try_size(job, size, pool, peaks)
        unit = "" if trial.examples_per_s is None else " examples/s"
        job.view.note(f"{trial.size:>9,} rows: {trial.describe_speed()}{unit}")
        return trial

    job.view.note(f"batch sizes from {min(settings['start'], cap):,} to {cap:,} rows a rank")
    search = search_batch_size(
        run_trial,
        start=min(settings["start"], cap),
        cap=cap,
        max_trials=settings["max_trials"],
        fall_off=settings["fall_off"],
        margin=settings["margin"],
    )
    show_report(job, _make_report(search))
    assert search.best is not None
    speed = round(search.best.examples_per_s or 0.0, 1)
    rows = global_batch_size(search.size, job.trainer.accumulate, ranks.world_size)
    return {"batch_size": search.size, "update_rows": rows, "examples_per_s": speed}


def search_batch_size(
    run_trial: Callable[[int], BatchSizeTrial],
    *,
    start: int,
    cap: int,
    max_trials: int,
    fall_off: float,
    margin: float,
) -> BatchSizeSearch:
    """Double the size up to the cap, or until memory or speed ends it; then bisect back.

    The result is the fastest size tried, but at least `margin` below the smallest that did not fit.

    Args:
        fall_off: the search ends where the speed is this share below the best.

    Raises:
        UserError: if no size fits.
    """
    search, size = BatchSizeSearch(), start
    low, high = 0, 0  # low fits and is fast enough; high does not fit or is too slow

    def reason_to_stop_at(size: int) -> str:
        """Try a size, and return why to go no further; empty if there is no reason."""
        best, trial = search.best, run_trial(size)
        search.trials.append(trial)
        if trial.examples_per_s is None:
            return trial.failure
        is_slow = best and trial.examples_per_s < (best.examples_per_s or 0.0) * (1 - fall_off)
        return "a fall in speed" if is_slow else ""

    while len(search.trials) < max_trials:
        search.end_reason = reason_to_stop_at(size)
        if search.end_reason:
            high = size
            break
        low = size
        if size >= cap:
            search.end_reason = f"the largest size allowed, {cap:,} rows"
            break
        size = min(2 * size, cap)
    while high and len(search.trials) < max_trials:
        middle = (low + high) // 2
        if high > SIZE_MULTIPLE:
            middle = middle // SIZE_MULTIPLE * SIZE_MULTIPLE
        if not low < middle < high or high - low <= low // 8:
            break
        if reason_to_stop_at(middle):
            high = middle
        else:
            low = middle
    return _choose_size(search, margin)


def _choose_size(search: BatchSizeSearch, margin: float) -> BatchSizeSearch:
    if search.best is None:
        smallest = min(t.size for t in search.trials)
        raise UserError(
            f"a batch of {smallest:,} rows does not fit into memory, so no size was found; a "
            "smaller model.net.embedding_dim takes less"
        )
    search.end_reason = search.end_reason or f"{len(search.trials)} trials"
    limit = min((t.size for t in search.trials if t.examples_per_s is None), default=None)
    search.size = search.best.size
    if limit is not None:
        most = max(1, int(limit * (1 - margin)))
        search.size = min(search.size, most // SIZE_MULTIPLE * SIZE_MULTIPLE or most)
    return search


def try_size(job: Job, size: int, pool: Batch, peaks: list[tuple[int, float]]) -> BatchSizeTrial:
    """Make an update in the worst case, then timed ones on real batches; reading is not timed.

    Collective. A trial that would run out of memory, judging by earlier ones, is not made: on CPU
    it would kill the process, and among ranks it would leave the others waiting.

    Args:
        size: rows of a rank and micro-batch.
        pool: the rows with the longest lists, for the worst case.
        peaks: size and bytes of the earlier trials; this one is added.

    Raises:
        RuntimeError: if an update fails for another reason than memory, or on several ranks.
        MemoryError: if memory runs out on several ranks.
    """
    ranks = job.context.ranks
    if ranks.all_reduce_max(predict_peak_bytes(peaks, size) > _limit_bytes(job)):
        return BatchSizeTrial(size, None, failure="would not fit, judging by earlier trials")
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
        trial_batches = [batch for batch in batches if batch.size == rows]
        trial_job = replace(
            job,
            trainer=replace(job.trainer, batch_size=size, max_steps=1 + updates, max_epochs=None),
            dataset=FixedBatches(job.dataset, repeat_rows(pool, rows), trial_batches),
        )
        times_s = []
        if job.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(job.device)
        stream = steps(trial_job, TrainState())
        for _ in range(1 + updates):
            started = time.perf_counter()
            next(stream)
            if job.device.type == "cuda":
                torch.cuda.synchronize(job.device)  # sync: the update itself is to be timed
            times_s.append(ranks.all_reduce_max(time.perf_counter() - started))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or ranks.is_distributed:
            raise
        free_memory(job.device)
        return BatchSizeTrial(size, None, failure="out of memory")
    peak = ranks.all_reduce_max(_peak_bytes(job))
    peaks.append((size, peak))
    # the fastest update counts: whatever else the machine does can only slow one down
    update_rows = global_batch_size(size, job.trainer.accumulate, ranks.world_size)
    return BatchSizeTrial(size, update_rows / min(times_s[1:]), peak)


def predict_peak_bytes(peaks: list[tuple[int, float]], size: int) -> float:
    """Return the peak memory of a size, on a line through the two largest trials.

    Returns:
        Bytes; 0 if there are fewer than two trials.
    """
    if len(peaks) < 2:
        return 0.0
    (small, low), (large, high) = sorted(peaks)[-2:]
    return high + max(0.0, high - low) / (large - small) * (size - large)


def _peak_bytes(job: Job) -> float:
    if job.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(job.device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _limit_bytes(job: Job) -> float:
    """Return how much this process may use at most, less the margin."""
    usable = 1 - float(job.loop_settings["margin"])
    if job.device.type == "cuda":
        return usable * torch.cuda.get_device_properties(job.device).total_memory
    return usable * (_peak_bytes(job) + available_memory_bytes())


def _make_report(search: BatchSizeSearch) -> TuningReport:
    rows = [
        TrialRow(
            cells=[
                f"{t.size:,}",
                t.describe_speed(),
                "" if t.examples_per_s is None else f"{t.peak_bytes / 2**20:,.0f}",
            ],
            value=t.examples_per_s or 0.0,
            mark="chosen" if t.size == search.size else "",
        )
        for t in sorted(search.trials, key=lambda t: t.size)
    ]
    return TuningReport(
        name="tune_batch_size",
        header=["batch_size", "examples/s", "peak MiB"],
        rows=rows,
        largest=max(row.value for row in rows),
        end=f"{search.end_reason}; trainer.batch_size={search.size}",
        title=f"batch size: {search.size:,}, ended by {search.end_reason}",
        x_title="rows a rank and micro-batch",
        y_axis={"title": "examples a second", "rangemode": "tozero"},
        curves={
            "examples a second": (
                [t.size for t in search.fitting],
                [t.examples_per_s or 0.0 for t in search.fitting],
            )
        },
    )
