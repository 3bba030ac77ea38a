"""Writing of rows in random order, so that no order of the source is left within the windows.

It takes two passes in bounded memory: rows go to random buckets, then every bucket, which fits
memory, is shuffled and written.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.prepare.shards import SHARD_ROWS, ShardWriter

FLUSH_ROWS = 2048  # rows of a bucket that wait in memory before they are written


class ShuffleWriter:
    """A `ShardWriter` that shuffles; the order depends only on the seed and the number of rows."""

    def __init__(self, folder: Path, split: str, *, num_rows: int, seed: int) -> None:
        self._folder, self._split = folder, split
        self._rng = np.random.default_rng([seed, 11])
        self._num_buckets = max(1, -(-num_rows // SHARD_ROWS))
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in range(self._num_buckets)]
        self._num_waiting = np.zeros(self._num_buckets, np.int64)
        self._open: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._files = contextlib.ExitStack()

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        bucket_of_row = self._rng.integers(self._num_buckets, size=table.num_rows)
        order = np.argsort(bucket_of_row, kind="stable")
        sorted_table = table.take(pa.array(order))
        ends = np.cumsum(np.bincount(bucket_of_row, minlength=self._num_buckets))
        for bucket, (start, stop) in enumerate(zip(np.r_[0, ends[:-1]], ends)):
            if stop > start:
                self._waiting[bucket].append(sorted_table.slice(start, stop - start))
                self._num_waiting[bucket] += stop - start
                if self._num_buckets > 1 and self._num_waiting[bucket] >= FLUSH_ROWS:
                    self._flush(bucket)

    def close(self) -> list[str]:
        """Shuffle and write all buckets; return the names of the files, in order."""
        writer = ShardWriter(self._folder, self._split)
        for bucket in range(self._num_buckets):
            if bucket in self._open:
                self._flush(bucket)
        self._files.close()
        for bucket in range(self._num_buckets):
            table = self._read(bucket)
            if table is not None:
                writer.write(table.take(pa.array(self._rng.permutation(table.num_rows))))
        return writer.close()

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{self._split}-{bucket}.bucket"

    def _flush(self, bucket: int) -> None:
        if not self._waiting[bucket]:
            return
        table = pa.concat_tables(self._waiting[bucket]).combine_chunks()
        if bucket not in self._open:
            sink = self._files.enter_context(pa.OSFile(str(self._path(bucket)), "wb"))
            writer = pa.ipc.new_stream(sink, table.schema)
            self._open[bucket] = self._files.enter_context(writer)
        self._open[bucket].write_table(table)
        self._waiting[bucket], self._num_waiting[bucket] = [], 0

    def _read(self, bucket: int) -> pa.Table | None:
        if bucket not in self._open:
            waiting, self._waiting[bucket] = self._waiting[bucket], []
            return pa.concat_tables(waiting).combine_chunks() if waiting else None
        with pa.OSFile(str(self._path(bucket)), "rb") as file:
            table = pa.ipc.open_stream(file).read_all().combine_chunks()
        self._path(bucket).unlink()
        return table
