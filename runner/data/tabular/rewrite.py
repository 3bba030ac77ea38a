"""Rewriting a user's table into the cache: learn from the train split, then encode every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.core.fitted import Learnt
from runner.data.prepare.shards import ShardWriter
from runner.data.prepare.shuffle import MixingWriter
from runner.data.tabular.bad_rows import BadRows, Judge
from runner.data.tabular.encode import blank, encode
from runner.data.tabular.fit import Learner, needs_pass
from runner.data.tabular.read_files import Piece
from runner.data.tabular.splits import SPLITS, Dealer, Split, TimeSample, times_of
from runner.errors import DataError

if TYPE_CHECKING:
    from runner.data.tabular.table import Table


def write_table(
    table: Table, folder: Path, advance: Callable[[int], None]
) -> tuple[dict[str, list[str]], Learnt, BadRows]:
    """The files of every split, what was learnt, and the bad rows that were skipped.

    Raises: DataError for the first bad row, or too many, and for a split that gets no row.
    """
    if table.learnt:
        learnt = Learnt.load(Path(table.learnt))
    else:
        bounds = _bounds(table)
        learnt = _learn(table, bounds, advance)
    bad = BadRows(table.max_bad_rows if table.skips else 0)
    wanted = dict.fromkeys([*table.dealt.splits, *table.files])
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


def _learn(table: Table, bounds: dict[str, float], advance: Callable[[int], None]) -> Learnt:
    learner = Learner(table.declared, split_seed=table.split_seed, skips=table.skips)
    problem = ""
    if needs_pass(table.declared):
        for piece, splits in _dealt(table, learner.columns(), bounds):
            if piece.table is not None:
                learner.see(piece, splits)
            problem = problem or piece.problem
            advance(piece.num_rows)
    try:
        learnt = learner.learnt()
    except DataError as error:
        if not problem:
            raise
        raise DataError(f"{error}; {problem}") from error
    learnt.times = bounds
    return learnt


def _encoded(
    table: Table, piece: Piece, learnt: Learnt, bad: BadRows, lengths: _Lengths
) -> tuple[pa.Table, np.ndarray]:
    judge = Judge.of(piece, table.skips)
    if piece.table is None:
        if lengths.schema is None:
            raise DataError(f"{piece.problem}; no row before it could be read")
        bad.judge(np.ones(piece.num_rows, bool), [piece.problem])
        return blank(piece.num_rows, lengths.schema), np.ones(piece.num_rows, bool)
    encoded = encode(piece, table.declared, learnt, judge)
    lengths.schema = encoded.schema
    bad_R, messages = judge.bad_R, list(judge.messages)
    if piece.malformed:
        encoded = pa.concat_tables([encoded, blank(len(piece.malformed), encoded.schema)])
        messages += [f"{piece.file}: line {n or '?'}: {what}" for n, what in piece.malformed]
        bad_R = np.concatenate([bad_R, np.ones(len(piece.malformed), bool)])
    if bad_R.any():
        bad.judge(bad_R, messages)
    return encoded, bad_R


def _dealt(
    table: Table, columns: list[str], bounds: dict[str, float]
) -> Iterator[tuple[Piece, dict[str, np.ndarray]]]:
    """All rows, with the split they belong to."""
    dealer = Dealer(table.dealt, table.split_seed, bounds)
    more = [table.dealt.column] if table.dealt.column else []
    for split, files in table.files.items():
        wanted = list(dict.fromkeys([*columns, *(more if split == "train" else [])]))
        # a pass over no column at all still has to know how many rows there are
        for number, file in enumerate(files):
            dealer.begin(number)
            for piece in table.pieces(file, wanted):
                if split == "train":
                    dealt = dealer.deal(piece)
                else:
                    dealt = {split: np.ones(piece.num_rows, bool)}
                yield piece, _padded(dealt, piece)


def _padded(splits: dict[str, np.ndarray], piece: Piece) -> dict[str, np.ndarray]:
    if not piece.malformed:
        return splits
    none = np.zeros(len(piece.malformed), bool)
    return {name: np.concatenate([own, none]) for name, own in splits.items()}


def _bounds(table: Table) -> dict[str, float]:
    """Where the last X begins, for a split by time."""
    split: Split = table.dealt
    if split.kind != "time":
        return {}
    sample = TimeSample(table.split_seed)
    for file in table.files["train"]:
        for piece in table.pieces(file, [str(split.column)]):
            if piece.table is not None:
                sample.add(times_of(piece.table, str(split.column)))
    return sample.bounds(split)


def _writer(table: Table, folder: Path, split: str) -> Any:
    if split == "train" and table.mix:
        num_rows = table.num_units() // (1 if table.learnt else 2)
        return MixingWriter(folder, split, num_rows=num_rows, seed=table.split_seed)
    return ShardWriter(folder, split)


def _why(table: Table, split: str) -> str:
    files = table.files.get(split)
    return f": {files[0]}" if files else f" (split {table.dealt.kind}: {dict(table.dealt.of)})"


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
