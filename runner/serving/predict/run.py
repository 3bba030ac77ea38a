"""Scores the rows of files with the model of a run, in parts that survive a kill.

Arguments are checked before torch is imported. Each rank has the whole model and scores its own
parts. Ranks never wait for each other, and their number changes no bit of the output.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.columns.column_specs import Declared
from runner.data.columns.vocabulary import MISSING_ID, UNKNOWN_ID
from runner.data.core.columns import is_list
from runner.data.files.bad_rows import BadRows, report_bad_rows
from runner.data.prepare.progress import show_progress
from runner.data.read.prefetch import prefetch_in_thread
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.torchrun import run_under_torchrun
from runner.distributed.world_size import launched_rank, launched_world_size
from runner.errors import DataError, UserError
from runner.launch import print_status
from runner.machine.cores import set_thread_environment, usable_cores
from runner.rundir.provenance import changed_code_note
from runner.rundir.run_files import read_meta
from runner.serving.predict.parts import (
    PartsSummary,
    await_output,
    check_parts,
    open_output,
    remove_unbegun,
    summarize_parts,
    write_part,
    write_summary,
)
from runner.serving.predict.plan import PredictionPlan
from runner.serving.rows.encode import PartEncoder
from runner.serving.rows.input import InputPart, LocatedChunk, cut_into_parts

PARTS_AHEAD = 2  # encoded by a thread while the model scores


@dataclass(frozen=True)
class PredictedFiles:
    """The folder of a complete prediction, and a summary of its content."""

    folder: Path
    parts: PartsSummary


def predict_files(plan: PredictionPlan) -> PredictedFiles | None:
    """Score files, and write Parquet parts with the rows in the order of the input.

    Returns:
        The result; None on a rank under torchrun that was not the last to end.

    Raises:
        UserError: for mistakes in the input, or in what the folder holds.
        RuntimeError: if a rank has failed.
        KeyboardInterrupt: if it was interrupted.
    """
    if launched_rank() > 0:
        await_output(plan.folder, plan.manifest)
        return _predict(plan)
    had_folder = plan.folder.exists()
    lock = open_output(plan.folder, plan.manifest)
    try:
        check_parts(plan.folder)
        return _predict(plan)
    except UserError:
        remove_unbegun(plan.folder, with_folder=not had_folder)
        raise
    finally:
        lock.release()


def _predict(plan: PredictionPlan) -> PredictedFiles | None:
    """Score the missing parts of an open folder."""
    for note in [*changed_code_note(read_meta(plan.run)), *plan.notes]:
        print_status(note)
    if plan.lacks_texts:
        print_status(
            "warning: top_items are the hashes of texts, since the files of the training cannot be "
            "read; --index names a folder of `index`, which knows the texts"
        )
    is_launched, num_ranks = launched_world_size(), plan.config["trainer"]["num_processes"]
    before = summarize_parts(plan.folder)
    threads = plan.config["trainer"]["num_threads"] or max(1, usable_cores() // num_ranks)
    set_thread_environment(threads)
    if is_launched is not None:
        result = run_under_torchrun(lambda: _work(plan, threads))
    elif num_ranks > 1:
        result = run_on_ranks(num_ranks, lambda: _work(plan, threads))
    else:
        result = score_missing_parts(plan, 0, 1, threads)
    _raise_failure(result)
    return _finish(plan, before, *json.loads(result.message))


def _work(plan: PredictionPlan, threads: int) -> ProcessResult:
    """Score the parts of this rank; return its outcome, with the count of input rows as message."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        return score_missing_parts(plan, rank, size, threads)
    except UserError as error:
        return ProcessResult(2, "refused", str(error), traceback.format_exc())


def score_missing_parts(
    plan: PredictionPlan, rank: int, num_ranks: int, threads: int
) -> ProcessResult:
    """Write the missing parts of this rank, and count the rows of the input."""
    table = plan.table
    num_rows = [0]

    def is_own(number: int) -> bool:
        return number % num_ranks == rank and not plan.is_done(number)

    def is_wanted(start: int, stop: int) -> bool:
        parts = range(start // plan.part_rows, (stop - 1) // plan.part_rows + 1)
        return any(map(is_own, parts))

    def counted() -> Iterator[LocatedChunk]:
        for start, chunk in table.located_chunks(is_wanted):
            num_rows[0] = start + chunk.num_rows
            yield start, chunk

    parts = cut_into_parts(counted(), plan.part_rows, is_own)
    first = next(parts, None)
    seconds = 0.0
    if first is not None:
        seconds = _score_parts(plan, first, parts, threads, rank, num_ranks)
    return ProcessResult(0, "completed", json.dumps([table.num_rows(num_rows[0]), seconds]))


def _score_parts(
    plan: PredictionPlan,
    first: InputPart,
    rest: Iterator[InputPart],
    threads: int,
    rank: int,
    num_ranks: int,
) -> float:
    """Load the model, then score and write parts, one after another; return the seconds it took."""
    from runner.serving.predict.model import RunModel  # torch enters here

    config = plan.config
    if num_ranks > 1:  # ranks share the cores; a single rank has the threads of an evaluation
        config = {**config, "trainer": {**config["trainer"], "num_threads": threads}}
    model = RunModel(config, plan.checkpoint, plan.transforms, plan.allowed)
    table = plan.table
    encoder = PartEncoder(
        plan.transforms,
        table.keep,
        table.empty_rows(),
        skip_bad_rows=table.skips_bad_rows,
        with_labels=plan.split is not None,
    )
    done = summarize_parts(plan.folder)
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0, done.num_bad_rows)
    unknown = UnknownIds(plan.transforms.features)
    num_remaining = max(0, table.num_rows_estimate() - done.num_rows)
    label = f"scoring with the checkpoint of step {plan.checkpoint.step}"
    shown = show_progress(label, num_remaining) if rank == 0 else nullcontext(lambda _: None)

    score, started = model.make_scorer(plan.outputs, plan.training), time.monotonic()
    parts = (encoder.encode(part) for part in chain([first], rest))
    with shown as advance:
        for part in prefetch_in_thread(parts, PARTS_AHEAD):
            rows = score(part)
            bad.add_rejected(part.bad_R, part.messages)
            unknown.add(part.rows, part.bad_R)
            write_part(plan.folder, part.number, rows, int(part.bad_R.sum()), part.messages)
            advance(rows.num_rows * num_ranks)
    for note in unknown.notes() if rank == 0 else ():
        print_status(note)
    return time.monotonic() - started


def _raise_failure(result: ProcessResult) -> None:
    """Raise the error that ended a rank.

    Raises:
        UserError: for a mistake of the user.
        RuntimeError: for any other failure.
        KeyboardInterrupt: for an interruption.
    """
    if result.status == "refused":
        raise UserError(result.message)
    if result.code == 143:
        os.kill(os.getpid(), signal.SIGTERM)  # end this process in the same way as the ranks
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if not result.is_ok:
        raise RuntimeError(f"{result.message}\n{result.trace}".strip())


def _finish(
    plan: PredictionPlan, before: PartsSummary, num_rows: int, seconds: float
) -> PredictedFiles | None:
    """Mark the prediction as complete, and return its result; None if other ranks still work.

    Raises:
        UserError: if the input was changed while it was read.
        DataError: if it has no rows.
    """
    if not num_rows and plan.split is not None:
        raise DataError(f"--split {plan.split}: has no rows; name another split or files with rows")
    if not num_rows:
        raise DataError(f"{plan.table.path[0]}: has no rows; name files with rows to score")
    parts = summarize_parts(plan.folder)
    expected = -(-num_rows // plan.part_rows)
    if parts.num_parts < expected:
        assert launched_world_size() is not None, "every rank has ended"
        return None
    if parts.num_rows != num_rows:
        raise UserError(
            f"--out {plan.folder}: has {parts.num_rows:,} rows and the input {num_rows:,}: a file "
            "was changed meanwhile; another --out starts anew"
        )
    write_summary(plan.folder, parts)
    report_bad_rows({"count": parts.num_bad_rows, "examples": parts.bad_rows})
    scored = parts.num_rows - before.num_rows
    if not scored:
        print_status(f"{plan.folder}: is complete already: {num_rows:,} rows")
    else:
        resumed = f", {before.num_rows:,} were there already" if before.num_rows else ""
        print_status(
            f"{plan.folder}: scored {scored:,} rows in {seconds:.1f} s "
            f"({scored / max(seconds, 1e-9):,.0f} rows/s){resumed}"
        )
    return PredictedFiles(plan.folder, parts)


LEAST_VALUES, LEAST_SHARE = 100, 0.9  # in columns that a note names


class UnknownIds:
    """Counts the values of each column that are missing in its vocabulary."""

    def __init__(self, features: Declared) -> None:
        self._names = [spec.name for spec in features.ids if spec.encode == "vocabulary"]
        self._counts = {name: np.zeros(2, np.int64) for name in self._names}  # unknown, all

    def add(self, rows: pa.Table, bad_R: np.ndarray) -> None:
        """Count the values of encoded rows, without bad rows and missing values."""
        if bad_R.any():
            rows = rows.filter(pa.array(~bad_R))
        for name in self._names:
            values = pc.list_flatten(rows[name]) if is_list(rows[name].type) else rows[name]
            ids_V = values.to_numpy()
            num_known = int((ids_V != MISSING_ID).sum())
            self._counts[name] += (int((ids_V == UNKNOWN_ID).sum()), num_known)

    def notes(self) -> Iterator[str]:
        """Yield a sentence on each column of whose values the model knows few."""
        for name, (unknown, count) in self._counts.items():
            if count >= LEAST_VALUES and unknown >= LEAST_SHARE * count:
                yield (
                    f"note: {name}: {unknown / count:.0%} of the values are unknown to the model, "
                    "which takes them for one id; compare them with those of the training (12, "
                    "12.0 and 012 differ as texts)"
                )
