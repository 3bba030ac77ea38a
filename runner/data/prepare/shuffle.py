"""Writes rows in random order, so that no order of the source remains within the windows.

It takes two passes in bounded memory: rows go to random buckets, then every bucket, which fits into
memory, is shuffled and written. Rows may be spilled in parts by several processes, and files
written by several: the order depends only on the seed and the number of rows.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from runner.data.core.blocks import ArrowWriter, open_blocks
from runner.data.prepare.progress import Advance
from runner.data.prepare.shards import BLOCK_ROWS, SHARD_ROWS, shard_name, split_blocks

SPILL_BYTES = 1 << 27  # of rows in memory before they are spilled
_SKIPPED_AT_ONCE = 1 << 22
Blocks = tuple[tuple[Path, int], ...]  # files and block numbers in them
_MAX_SMALL_TABLES = 256  # that are held before they are joined


class BucketDraws:
    """Draws the bucket of one row after another, and then the order within each bucket."""

    def __init__(self, *, num_rows: int, seed: int) -> None:
        """Args: num_rows: an estimate of all rows, which determines the number of buckets."""
        self.num_buckets = max(1, -(-num_rows // SHARD_ROWS))
        self._rng = np.random.default_rng([seed, 11])

    def draw(self, count: int) -> np.ndarray:
        """Return the buckets of the next rows: [count] int64."""
        return self._rng.integers(self.num_buckets, size=count)

    def skip(self, count: int) -> None:
        """Draw and discard the buckets of rows that others write."""
        for start in range(0, count, _SKIPPED_AT_ONCE):
            self.draw(min(_SKIPPED_AT_ONCE, count - start))

    def order(self, count: int) -> np.ndarray:
        """Return the order of the rows of the next non-empty bucket: [count] int64."""
        return self._rng.permutation(count)


@dataclass(frozen=True)
class SpilledRows:
    """A file with spilled rows of a split."""

    path: Path
    blocks: tuple[tuple[int, int], ...]  # bucket and rows of each block


class RowSpill:
    """Writes rows to one file in blocks, each with the rows of one bucket in their order."""

    def __init__(self, path: Path, draws: BucketDraws | None, max_bytes: int = SPILL_BYTES) -> None:
        """Args: draws: None: the rows keep their order."""
        self._path, self._draws, self._max_bytes = path, draws, max_bytes
        self._waiting: list[pa.Table] = []
        self._num_bytes = 0
        self._writer: ArrowWriter | None = None
        self._blocks: list[tuple[int, int]] = []

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._waiting.append(table)
        self._num_bytes += table.nbytes
        if self._draws is None or self._num_bytes >= self._max_bytes:
            self._flush()

    def close(self) -> SpilledRows:
        if self._waiting:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        return SpilledRows(self._path, tuple(self._blocks))

    def _flush(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._waiting, self._num_bytes = [], 0
        if self._writer is None:
            self._writer = ArrowWriter(self._path, table.schema)
        ends = np.array([table.num_rows])
        if self._draws is not None and self._draws.num_buckets > 1:
            bucket_of_row = self._draws.draw(table.num_rows)
            table = take_rows(table, np.argsort(bucket_of_row, kind="stable"))
            ends = np.cumsum(np.bincount(bucket_of_row, minlength=self._draws.num_buckets))
        for bucket, (start, stop) in enumerate(zip(np.r_[0, ends[:-1]], ends)):
            if stop > start:
                self._writer.write(table.slice(start, stop - start))
                self._blocks.append((bucket, int(stop - start)))


@dataclass(frozen=True)
class BlockRun:
    """Rows of some blocks, in order or shuffled, from `start` to `stop`."""

    blocks: Blocks
    start: int
    stop: int
    num_rows: int  # of the blocks
    draws: BucketDraws | None = None  # its next order is the order of the rows
    num_bytes: int = 0  # of the blocks, approximately


@dataclass(frozen=True)
class Shard:
    """One file of a split, and its rows."""

    path: Path
    runs: tuple[BlockRun, ...]

    @property
    def num_bytes(self) -> int:
        """The approximate memory that the rows take while they are read."""
        return max(run.num_bytes for run in self.runs)


def plan_shards(
    folder: Path, split: str, spilled: Sequence[SpilledRows], draws: BucketDraws | None
) -> list[Shard]:
    """Return the files that will contain all spilled rows.

    Args:
        folder: for the files.
        split: part of their names.
        spilled: rows in the order of their parts.
        draws: with the drawn bucket of each row; None: the rows keep their order.
    """
    shards: list[Shard] = []
    runs: list[BlockRun] = []
    rows_left = SHARD_ROWS
    for block_run in _iterate_runs(spilled, draws):
        start = 0
        while start < block_run.num_rows:
            stop = min(block_run.num_rows, start + rows_left)
            runs.append(replace(block_run, start=start, stop=stop))
            rows_left -= stop - start
            start = stop
            if not rows_left:
                shards.append(Shard(folder / shard_name(split, len(shards)), tuple(runs)))
                runs, rows_left = [], SHARD_ROWS
    if runs:
        shards.append(Shard(folder / shard_name(split, len(shards)), tuple(runs)))
    return shards


def _iterate_runs(spilled: Sequence[SpilledRows], draws: BucketDraws | None) -> Iterator[BlockRun]:
    blocks: dict[int, list[tuple[Path, int]]] = defaultdict(list)
    counts, num_bytes = Counter[int](), Counter[int]()
    for rows in spilled:
        num_rows = sum(count for _, count in rows.blocks)
        per_row = rows.path.stat().st_size / num_rows if num_rows else 0.0
        for number, (bucket, count) in enumerate(rows.blocks):
            if draws is None:
                run_bytes = int(count * per_row)
                yield BlockRun(((rows.path, number),), 0, count, count, None, run_bytes)
            blocks[bucket].append((rows.path, number))
            counts[bucket] += count
            num_bytes[bucket] += int(count * per_row)
    if draws is None:
        return
    draws = copy.deepcopy(draws)
    for bucket in sorted(blocks):
        before, count = copy.deepcopy(draws), counts[bucket]
        draws.order(count)
        yield BlockRun(tuple(blocks[bucket]), 0, count, count, before, num_bytes[bucket])


@dataclass(frozen=True)
class ShardGroup:
    """Files of a split that are written after one pass over the spilled rows."""

    shards: tuple[Shard, ...]
    spilled: tuple[Path, ...]  # the files with their rows, and others, in the order of their parts


def group_shards(
    shards: Sequence[Shard], spilled: Sequence[SpilledRows], *, num_bytes: int, num_workers: int
) -> Iterator[ShardGroup]:
    """Yield the files in groups that take at most `num_bytes` of memory, or alone.

    Each pass opens every spilled file, of which there may be thousands. There are groups for all
    workers if there are enough files.
    """
    paths = tuple(rows.path for rows in spilled)
    most = -(-len(shards) // num_workers)
    group: list[Shard] = []
    read: dict[Blocks, int] = {}  # the blocks of each run -> their bytes
    for shard in shards:
        # files share the bucket that reaches from one into the next, and one in order has many runs
        own = {run.blocks: run.num_bytes for run in shard.runs}
        if group and (len(group) == most or sum((read | own).values()) > num_bytes):
            yield ShardGroup(tuple(group), paths)
            group, read = [], {}
        group.append(shard)
        read |= own
    if group:
        yield ShardGroup(tuple(group), paths)


def write_shards(group: ShardGroup, advance: Advance) -> None:
    """Write the files of a group."""
    tables: Mapping[Blocks, pa.Table] = {}
    if len(group.shards) > 1:  # a file alone has at most the rows of one run in memory beside it
        keys = dict.fromkeys(run.blocks for shard in group.shards for run in shard.runs)
        tables = _read_in_one_pass(tuple(keys), group.spilled)
    for shard in group.shards:
        write_shard(shard, advance, tables)


def _read_in_one_pass(keys: Sequence[Blocks], paths: Iterable[Path]) -> dict[Blocks, pa.Table]:
    """Return the rows of each of some blocks of runs, in the order of the blocks.

    Args:
        keys: the blocks of each run.
        paths: the files that hold them, and perhaps others, in the order of their parts.
    """
    numbers: dict[Path, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for k, blocks in enumerate(keys):
        for path, number in blocks:
            numbers[path][k].append(number)
    tables: list[list[pa.Table]] = [[] for _ in keys]
    small: list[list[pa.Table]] = [[] for _ in keys]
    for path in paths:
        if path not in numbers:
            continue
        with closing(open_blocks(path)) as file:
            for k, wanted in numbers[path].items():
                small[k].append(file.read(wanted, file.schema.names))
        for k in numbers[path]:  # a table of few rows takes kilobytes besides them
            if len(small[k]) >= _MAX_SMALL_TABLES:
                tables[k].append(pa.concat_tables(small[k]).combine_chunks())
                small[k] = []
    return {key: pa.concat_tables([*tables[k], *small[k]]) for k, key in enumerate(keys)}


def write_shard(
    shard: Shard,
    advance: Advance,
    tables: Mapping[Blocks, pa.Table] = MappingProxyType({}),
) -> None:
    """Write one file of a split; it gets its name when it is complete.

    Args:
        shard: the file.
        advance: called with its number of rows.
        tables: blocks -> their rows, of runs that have been read already.
    """
    temporary = shard.path.with_name(f".{shard.path.name}.tmp")
    table = pa.concat_tables([_take_run(run, tables) for run in shard.runs])
    with ArrowWriter(temporary, table.schema) as writer:
        for block in split_blocks(table):
            writer.write(block)
    temporary.rename(shard.path)
    advance(table.num_rows)


def _take_run(run: BlockRun, tables: Mapping[Blocks, pa.Table]) -> pa.Table:
    """Return the rows of a run from those of its blocks, which are read if they are not given."""
    if run.blocks not in tables:
        tables = _read_in_one_pass([run.blocks], dict.fromkeys(path for path, _ in run.blocks))
    table = tables[run.blocks]
    if run.draws is None:
        return table.slice(run.start, run.stop - run.start)
    order = copy.deepcopy(run.draws).order(run.num_rows)  # the other rows may be in another file
    return take_rows(table, order[run.start : run.stop])


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return rows of a table, column by column, so that only one column at a time is contiguous."""
    indices = pa.array(rows)
    return pa.table([_take(column, indices) for column in table.columns], schema=table.schema)


def _take(column: pa.ChunkedArray, indices: pa.Array) -> pa.ChunkedArray | pa.Array:
    try:
        return column.combine_chunks().take(indices)
    except pa.ArrowInvalid:  # texts of over 2 GB, whose offsets need 64 bits
        large = pa.large_string() if pa.types.is_string(column.type) else pa.large_binary()
        texts = column.cast(large).combine_chunks()
        parts = (
            indices[start : start + BLOCK_ROWS] for start in range(0, len(indices), BLOCK_ROWS)
        )
        return pa.chunked_array([texts.take(p).cast(column.type) for p in parts], column.type)


class ShuffleWriter:
    """A `ShardWriter` that shuffles; the order depends only on the seed and the number of rows."""

    def __init__(self, folder: Path, split: str, *, num_rows: int, seed: int) -> None:
        self._folder, self._split = folder, split
        self._draws = BucketDraws(num_rows=num_rows, seed=seed)
        self._spill = RowSpill(folder / f"{split}.spilled.arrow", self._draws)

    def write(self, table: pa.Table) -> None:
        self._spill.write(table)

    def close(self) -> list[str]:
        """Shuffle and write all rows; return the names of the files, in order."""
        spilled = self._spill.close()
        shards = plan_shards(self._folder, self._split, [spilled], self._draws)
        for shard in shards:
            write_shard(shard, lambda _: None)
        spilled.path.unlink(missing_ok=True)
        return [shard.path.name for shard in shards]
