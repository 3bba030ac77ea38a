"""Stores rows on disk in partitions by user, so that all rows of a user are in memory together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.core.transforms import splitmix64

PARTITION_ROWS = 1 << 18
MAX_PARTITIONS = 256  # that are open at once
_SALT = 17  # of the hash, so that already hashed ids of users spread evenly


class PartitionWriter:
    """Writes tables of rows to partitions, each of which preserves their order."""

    def __init__(self, folder: Path, name: str, *, num_rows: int) -> None:
        """Args: num_rows: an estimate of all rows, which determines the number of partitions."""
        count = min(MAX_PARTITIONS, -(-max(num_rows, 1) // PARTITION_ROWS))
        self._paths = [folder / f"{name}-{number}.partition" for number in range(count)]
        self._open: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._files = contextlib.ExitStack()

    def write(self, table: pa.Table, users_R: np.ndarray) -> None:
        """Write rows. Args: users_R: [R] int64, the user of each row."""
        count = len(self._paths)
        if count == 1 and table.num_rows:
            self._write(0, table)
            return
        partition_R = splitmix64(users_R.view(np.uint64), _SALT) % np.uint64(count)
        order_R = np.argsort(partition_R, kind="stable")
        ends = np.cumsum(np.bincount(partition_R.astype(np.int64), minlength=count))
        table = table.take(pa.array(order_R))
        for number, (start, stop) in enumerate(zip(np.r_[0, ends[:-1]], ends)):
            if stop > start:
                self._write(number, table.slice(start, stop - start))

    def close(self) -> list[Path]:
        """Return the files of the partitions with rows."""
        self._files.close()
        return [self._paths[number] for number in sorted(self._open)]

    def _write(self, number: int, table: pa.Table) -> None:
        if number not in self._open:
            sink = self._files.enter_context(pa.OSFile(str(self._paths[number]), "wb"))
            self._open[number] = self._files.enter_context(pa.ipc.new_stream(sink, table.schema))
        self._open[number].write_table(table.combine_chunks())


def read_partition(path: Path) -> pa.Table:
    """Return all rows of a partition."""
    with pa.OSFile(str(path), "rb") as file:
        return pa.ipc.open_stream(file).read_all().combine_chunks()


def read_arrays(path: Path, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield columns of a partition, each [R]."""
    table = read_partition(path)
    for name in names:
        yield table[name].to_numpy()
