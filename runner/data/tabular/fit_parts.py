"""Fits the transforms to a table part by part, out of memory if necessary.

Each part writes its facts into its own folder; then the folders are merged in the order of the
rows, so that the transforms are bit for bit those of one pass over all rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from runner.data.columns.column_specs import Declared
from runner.data.columns.vocabulary import ValueCounter, map_values, merge_runs
from runner.data.core.fitted import FittedTransforms
from runner.data.prepare.engine import Engine, InProcess, Work
from runner.data.prepare.part_folders import FACTS_FILE, complete_folder, is_done, read_facts
from runner.data.prepare.progress import Advance
from runner.data.tabular.fit import ChunkFacts, TransformFitter
from runner.data.tabular.parts import (
    Part,
    RewritableTable,
    check_num_rows,
    find_parts,
    iterate_part,
)
from runner.data.tabular.splits import TimeSample, read_seconds
from runner.errors import DataError

MERGED_AT_ONCE = 1 << 20  # values of a vocabulary at a time; more are no faster
VALUE_BYTES = 48  # bytes that a counted value takes during a merge


@dataclass(frozen=True)
class PartTask:
    """A task on one part; picklable."""

    table: RewritableTable
    part: Part
    folder: Path  # the file of the result, which exists only when complete
    task_bytes: int
    split_starts: Mapping[str, float] = field(default_factory=dict)


def find_split_starts(
    table: RewritableTable,
    folder: Path,
    engine: Engine | None = None,
    advance: Advance = lambda _: None,
) -> dict[str, float]:
    """Return split -> its first time in seconds; empty if rows are not split by time."""
    if table.row_split.kind != "time":
        return {}
    parts = [part for part in find_parts(table) if part.split == "train"]
    engine = engine or InProcess()
    folders = _work_on(read_times, table, parts, {}, folder, "times", engine, advance)
    sample = TimeSample(table.split_seed)
    for part_folder in folders:
        for times in _iterate_arrays(part_folder, "times", read_facts(part_folder)["lengths"]):
            sample.add(times)
    return sample.split_starts(table.row_split)


def _work_on(
    work: Work,
    table: RewritableTable,
    parts: Sequence[Part],
    split_starts: Mapping[str, float],
    folder: Path,
    name: str,
    engine: Engine,
    advance: Advance = lambda _: None,
) -> list[Path]:
    """Run a task on all unfinished parts; return the folder of each."""
    folders = [_part_folder(folder, name, part) for part in parts]
    tasks = (
        PartTask(table, part, part_folder, engine.task_bytes, split_starts)
        for part, part_folder in zip(parts, folders)
        if not is_done(part_folder)
    )
    for _ in engine.map(work, tasks, advance):
        pass
    return folders


def count_parts(
    table: RewritableTable,
    parts: Sequence[Part],
    split_starts: Mapping[str, float],
    work_folder: Path,
    engine: Engine,
) -> list[int]:
    """Return the train rows of each part."""
    folders = _work_on(count_part, table, parts, split_starts, work_folder, "count", engine)
    return [read_facts(folder)["train_rows"] for folder in folders]


def count_part(task: PartTask, advance: Advance) -> None:
    """Write the number of train rows of a part."""
    train_rows = num_rows = 0
    with complete_folder(task.folder) as folder:
        # any column shows how many rows there are, if nothing else does
        columns = task.table.columns_read[:1]
        for chunk, masks in iterate_part(task.table, task.part, columns, task.split_starts):
            train_rows += count_train_rows(masks, len(chunk.malformed_lines))
            num_rows += chunk.num_rows
        facts = {"train_rows": train_rows, "num_rows": num_rows}
        (folder / FACTS_FILE).write_text(json.dumps(facts))


def read_times(task: PartTask, advance: Advance) -> None:
    """Write the times of a part that its split depends on."""
    table, column = task.table, str(task.table.row_split.column)
    lengths = []
    with complete_folder(task.folder) as folder, (folder / "times").open("wb") as file:
        for chunk in table.read_chunks(task.part.file, [column], task.part.row_groups):
            if chunk.table is not None:
                seconds = read_seconds(chunk.table, table.row_split)
                file.write(seconds.data)
                lengths.append(len(seconds))
            advance(chunk.num_rows)
        (folder / FACTS_FILE).write_text(json.dumps({"lengths": lengths}))


def fit_part(task: PartTask, advance: Advance) -> None:
    """Write the facts of a part that transforms are fitted to, and its number of train rows."""
    table = task.table
    fitter = TransformFitter(
        table.declared, split_seed=table.split_seed, skip_bad_rows=table.skips_bad_rows
    )
    columns = fitter.columns_to_read()
    train_rows, num_rows, problem = 0, 0, ""
    with complete_folder(task.folder) as folder:
        with _FactsWriter(folder, task.task_bytes // 4) as writer:
            for chunk, masks in iterate_part(table, task.part, columns, task.split_starts):
                if chunk.table is not None:
                    writer.add(fitter.observe(chunk, masks))
                train_rows += count_train_rows(masks, len(chunk.malformed_lines))
                num_rows += chunk.num_rows
                problem = problem or chunk.problem
                advance(chunk.num_rows)
        counts = {"train_rows": train_rows, "num_rows": num_rows, "problem": problem}
        (folder / FACTS_FILE).write_text(json.dumps({**writer.facts(), **counts}))


def check_rows_before(task: PartTask, num_rows: int) -> None:
    """Check that earlier passes have seen as many rows of a part.

    Raises:
        DataError: naming the file.
    """
    for name in ("fit", "count"):
        folder = _part_folder(task.folder.parent, name, task.part)
        if is_done(folder):
            check_num_rows(task.part.file, num_rows, read_facts(folder)["num_rows"])


def _part_folder(work_folder: Path, name: str, part: Part) -> Path:
    return work_folder / f"{name}-{part.number:05d}"


def count_train_rows(masks: Mapping[str, np.ndarray], num_malformed: int) -> int:
    """Count the train rows of a chunk; a malformed line counts as a row of the first split."""
    blank = num_malformed if next(iter(masks)) == "train" else 0
    return (int(masks["train"].sum()) if "train" in masks else 0) + blank


class _FactsWriter(ExitStack):
    """Writes the facts of chunks: numbers directly, values as sorted runs with counts."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        super().__init__()
        self._folder, self._max_values = folder, max_bytes // VALUE_BYTES
        self._moments: list[list[Any]] = []
        self._largest: dict[str, int] = {}
        self._counters: dict[str, ValueCounter] = {}
        self._runs: dict[str, list[str]] = {}
        self._samples: dict[str, IO[bytes]] = {}
        self._lengths: dict[str, list[int]] = {}

    def add(self, facts: ChunkFacts) -> None:
        self._moments += [[name, *moments] for name, moments in facts.moments.items()]
        for name, largest in facts.largest.items():
            self._largest[name] = max(self._largest.get(name, 0), largest)
        for name, arrays in facts.values.items():
            for values in arrays:
                self._counters.setdefault(name, ValueCounter()).add(values)
        for name, values in facts.samples.items():
            if name not in self._samples:
                path = self._folder / f"sample-{len(self._samples)}"
                self._samples[name] = self.enter_context(path.open("wb"))
                self._lengths[name] = []
            self._samples[name].write(np.ascontiguousarray(values).data)
            self._lengths[name].append(len(values))
        if sum(counter.num_held for counter in self._counters.values()) > self._max_values:
            self._spill()

    def facts(self) -> dict[str, Any]:
        """Spill the remaining values, and return all facts that are not in files."""
        self._spill()
        samples = [[n, Path(f.name).name, self._lengths[n]] for n, f in self._samples.items()]
        facts = {"moments": self._moments, "largest": self._largest, "runs": self._runs}
        return {**facts, "samples": samples}

    def _spill(self) -> None:
        for number, (name, counter) in enumerate(self._counters.items()):
            runs = self._runs.setdefault(name, [])
            runs.append(f"run-{number}-{len(runs)}")
            counter.spill(self._folder / runs[-1])


class _MergedFitter(TransformFitter):
    """A fitter that merges the facts of parts, in their order."""

    def __init__(self, declared: Declared, split_seed: int, folders: Sequence[Path]) -> None:
        super().__init__(declared, split_seed=split_seed, skip_bad_rows=False)
        self._seed, self._folders = split_seed, folders
        self._facts = [read_facts(folder) for folder in folders]
        self.vocabularies: dict[str, np.ndarray] = {}
        for facts in self._facts:
            for moments in facts["moments"]:
                self.add_moments(*moments)
            for name, largest in facts["largest"].items():
                self.add_largest(name, largest)

    @property
    def problem(self) -> str:
        return next((facts["problem"] for facts in self._facts if facts["problem"]), "")

    def runs(self, name: str) -> list[Path]:
        """Return the files with the values of a table."""
        return [
            folder / run
            for folder, facts in zip(self._folders, self._facts)
            for run in facts["runs"].get(name, ())
        ]

    def vocabulary(self, name: str, min_count: int) -> np.ndarray:
        return self.vocabularies[name]

    def sample(self, name: str) -> TimeSample:
        sample = TimeSample(self._seed)
        for folder, facts in zip(self._folders, self._facts):
            for sample_name, file, lengths in facts["samples"]:
                if sample_name == name:
                    for values in _iterate_arrays(folder, file, lengths):
                        sample.add(values)
        return sample


def _iterate_arrays(folder: Path, name: str, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the float64 arrays of a file, one after another."""
    with (folder / name).open("rb") as file:
        for length in lengths:
            yield np.fromfile(file, np.float64, length)


@dataclass(frozen=True)
class MergeTask:
    """The task to merge the runs of one table's values into its vocabulary."""

    runs: tuple[Path, ...]
    min_count: int
    out: Path
    max_values: int


def merge_vocabulary(task: MergeTask, advance: Advance) -> None:
    """Write the vocabulary of one table."""
    temporary = task.out.with_name(f".{task.out.name}.tmp")
    merge_runs(task.runs, task.min_count, temporary, max_values=task.max_values)
    temporary.rename(task.out)


def fit_table(
    table: RewritableTable,
    parts: Sequence[Part],
    split_starts: Mapping[str, float],
    work_folder: Path,
    engine: Engine,
    advance: Advance,
) -> tuple[FittedTransforms, list[int]]:
    """Fit the transforms of a table.

    Args:
        parts: all parts of the table; empty if nothing has to be fitted to rows.
        work_folder: the folder of the parts.

    Returns:
        The transforms, whose vocabularies stay in files, and the number of train rows of each part.

    Raises:
        DataError: for a bad row, unless bad rows are skipped, and for a column without a value to
            fit its transform to.
    """
    folders = _work_on(fit_part, table, parts, split_starts, work_folder, "fit", engine, advance)
    fitter = _MergedFitter(table.declared, table.split_seed, folders)
    limit = min(MERGED_AT_ONCE, engine.task_bytes // 2 // VALUE_BYTES)
    least = fitter.vocabulary_tables()
    files = {name: work_folder / f"vocabulary-{number}" for number, name in enumerate(least)}
    merges = [
        MergeTask(tuple(fitter.runs(name)), least[name], file, limit)
        for name, file in files.items()
        if not file.exists()
    ]
    for _ in engine.map(merge_vocabulary, merges, advance):
        pass
    fitter.vocabularies = {name: map_values(file) for name, file in files.items()}
    try:
        fitted = fitter.compute()
    except DataError as error:
        if not fitter.problem:
            raise
        raise DataError(f"{error}; {fitter.problem}") from error
    return fitted, [read_facts(folder)["train_rows"] for folder in folders]
