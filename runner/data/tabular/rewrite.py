"""Rewriting a user's table into the cache: learn from the train split, then encode every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from runner.data.core.fitted import FittedTransforms
from runner.data.prepare.shards import ShardWriter
from runner.data.prepare.shuffle import ShuffleWriter
from runner.data.tabular.bad_rows import BadRows, RowValidator
from runner.data.tabular.encode import encode_chunk, make_blank_rows
from runner.data.tabular.file_list import DataFile
from runner.data.tabular.fit import TransformFitter, needs_fitting
from runner.data.tabular.read_files import RowChunk
from runner.data.tabular.schema_file import Declared
from runner.data.tabular.splits import SPLITS, Split, SplitAssigner, TimeSample, read_seconds
from runner.errors import DataError


class RewritableTable(Protocol):
    """What of a user's table the rewriting needs; `TableRecipe` has it."""

    @property
    def declared(self) -> Declared: ...
    @property
    def learnt(self) -> str | None: ...  # a file of transforms fitted elsewhere
    @property
    def split_seed(self) -> int: ...
    @property
    def max_bad_rows(self) -> int: ...
    @property
    def mix(self) -> bool: ...
    @property
    def files(self) -> Mapping[str, Sequence[DataFile]]: ...
    @property
    def row_split(self) -> Split: ...
    @property
    def skips_bad_rows(self) -> bool: ...
    @property
    def columns_read(self) -> list[str]: ...
    def read_chunks(self, file: DataFile, columns: list[str]) -> Iterator[RowChunk]: ...
    def num_progress_units(self) -> int: ...


def rewrite_table(
    table: RewritableTable, folder: Path, advance: Callable[[int], None]
) -> tuple[dict[str, list[str]], FittedTransforms, BadRows]:
    """The files of every split, what was learnt, and the bad rows that were skipped.

    Raises: DataError for the first bad row, or too many, and for a split that gets no row.
    """
    if table.learnt:
        learnt = FittedTransforms.load(Path(table.learnt))
    else:
        bounds = _bounds(table)
        learnt = _learn(table, bounds, advance)
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0)
    wanted = dict.fromkeys([*table.row_split.splits, *table.files])
    writers = {split: _writer(table, folder, split) for split in SPLITS if split in wanted}
    lengths = _Lengths()
    for piece, splits in _dealt(table, table.columns_read, learnt.times):
        encoded, bad_R = _encoded(table, piece, learnt, bad, lengths)
        for split, own_R in splits.items():
            lengths.see(split, own_R, encoded)
            writers[split].write(encoded.filter(pa.array(own_R)))
        if len(bad_R) > piece.num_rows:  # lines that are no rows keep a slot too
            writers[next(iter(splits))].write(encoded.slice(piece.num_rows))
        advance(piece.num_rows)
    names = {split: writer.close() for split, writer in writers.items()}
    for split, files in names.items():
        if not files:
            raise DataError(f"the {split} split has no rows{_why(table, split)}")
    learnt.mean_length = lengths.means()
    learnt.save(folder)
    return names, learnt, bad


def _learn(
    table: RewritableTable, bounds: dict[str, float], advance: Callable[[int], None]
) -> FittedTransforms:
    learner = TransformFitter(
        table.declared, split_seed=table.split_seed, skip_bad_rows=table.skips_bad_rows
    )
    problem = ""
    if needs_fitting(table.declared):
        for piece, splits in _dealt(table, learner.columns_to_read(), bounds):
            if piece.table is not None:
                learner.update(piece, splits)
            problem = problem or piece.problem
            advance(piece.num_rows)
    try:
        learnt = learner.compute()
    except DataError as error:
        if not problem:
            raise
        raise DataError(f"{error}; {problem}") from error
    learnt.times = bounds
    return learnt


def _encoded(
    table: RewritableTable,
    piece: RowChunk,
    learnt: FittedTransforms,
    bad: BadRows,
    lengths: _Lengths,
) -> tuple[pa.Table, np.ndarray]:
    judge = RowValidator.for_chunk(piece, table.skips_bad_rows)
    if piece.table is None:
        if lengths.schema is None:
            raise DataError(f"{piece.problem}; no row before it could be read")
        bad.record(np.ones(piece.num_rows, bool), [piece.problem])
        return make_blank_rows(piece.num_rows, lengths.schema), np.ones(piece.num_rows, bool)
    encoded = encode_chunk(piece, table.declared, learnt, judge)
    lengths.schema = encoded.schema
    bad_R, messages = judge.bad_R, list(judge.messages)
    if piece.malformed_lines:
        encoded = pa.concat_tables(
            [encoded, make_blank_rows(len(piece.malformed_lines), encoded.schema)]
        )
        messages += [f"{piece.file}: line {n or '?'}: {what}" for n, what in piece.malformed_lines]
        bad_R = np.concatenate([bad_R, np.ones(len(piece.malformed_lines), bool)])
    if bad_R.any():
        bad.record(bad_R, messages)
    return encoded, bad_R


def _dealt(
    table: RewritableTable, columns: list[str], bounds: dict[str, float]
) -> Iterator[tuple[RowChunk, dict[str, np.ndarray]]]:
    """All rows, with the split they belong to."""
    dealer = SplitAssigner(table.row_split, table.split_seed, bounds)
    more = [table.row_split.column] if table.row_split.column else []
    for split, files in table.files.items():
        wanted = list(dict.fromkeys([*columns, *(more if split == "train" else [])]))
        # a pass over no column at all still has to know how many rows there are
        for number, file in enumerate(files):
            dealer.start_file(number)
            for piece in table.read_chunks(file, wanted):
                if split == "train":
                    dealt = dealer.assign(piece)
                else:
                    dealt = {split: np.ones(piece.num_rows, bool)}
                yield piece, _padded(dealt, piece)


def _padded(splits: dict[str, np.ndarray], piece: RowChunk) -> dict[str, np.ndarray]:
    if not piece.malformed_lines:
        return splits
    none = np.zeros(len(piece.malformed_lines), bool)
    return {name: np.concatenate([own, none]) for name, own in splits.items()}


def _bounds(table: RewritableTable) -> dict[str, float]:
    """Where the last X begins, for a split by time."""
    split: Split = table.row_split
    if split.kind != "time":
        return {}
    sample = TimeSample(table.split_seed)
    for file in table.files["train"]:
        for piece in table.read_chunks(file, [str(split.column)]):
            if piece.table is not None:
                sample.add(read_seconds(piece.table, str(split.column)))
    return sample.split_starts(split)


def _writer(table: RewritableTable, folder: Path, split: str) -> Any:
    if split == "train" and table.mix:
        num_rows = table.num_progress_units() // (1 if table.learnt else 2)
        return ShuffleWriter(folder, split, num_rows=num_rows, seed=table.split_seed)
    return ShardWriter(folder, split)


def _why(table: RewritableTable, split: str) -> str:
    files = table.files.get(split)
    return (
        f": {files[0]}" if files else f" (split {table.row_split.kind}: {dict(table.row_split.of)})"
    )


class _Lengths:
    """Mean number of ids a row of every list column of the train split."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._rows = 0
        self.schema: pa.Schema | None = None

    def see(self, split: str, own_R: np.ndarray, encoded: pa.Table) -> None:
        if split != "train":
            return
        self._rows += int(own_R.sum())
        for field in encoded.schema:
            if pa.types.is_list(field.type):
                lengths = pa.compute.list_value_length(encoded[field.name]).to_numpy()
                self._values[field.name] = self._values.get(field.name, 0) + int(
                    lengths[own_R].sum()
                )

    def means(self) -> dict[str, float]:
        return {name: count / max(self._rows, 1) for name, count in self._values.items()}
