"""Writing of prepared files, in blocks of a size that suits the shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from runner.data.core.blocks import ARROW_SUFFIX, ArrowWriter

BLOCK_ROWS = 8192  # 16 blocks make a window of the shuffle
SHARD_ROWS = 64 * BLOCK_ROWS  # rows of a file


def shard_name(split: str, number: int) -> str:
    """Return the name of a split's prepared file."""
    return f"{split}-{number:05d}{ARROW_SUFFIX}"


class ShardWriter:
    """Writes rows to files `<split>-00000.arrow` and so on; all blocks but the last are full."""

    def __init__(self, folder: Path, split: str) -> None:
        self._folder, self._split = folder, split
        self._waiting: list[pa.Table] = []
        self._num_waiting = self._num_in_shard = 0
        self._writer: ArrowWriter | None = None
        self.names: list[str] = []

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._num_waiting += table.num_rows
        num_full = self._num_waiting // BLOCK_ROWS * BLOCK_ROWS
        if num_full:
            self._flush(num_full)

    def close(self) -> list[str]:
        """Write the remaining rows; return the names of the files, in order."""
        if self._num_waiting:
            self._flush(self._num_waiting)
        if self._writer:
            self._writer.close()
        return self.names

    def _flush(self, count: int) -> None:
        table = pa.concat_tables(self._waiting)
        rest = table.slice(count)
        self._waiting, self._num_waiting = ([rest] if rest.num_rows else []), rest.num_rows
        for block in split_blocks(table.slice(0, count)):
            writer = self._writer
            if writer is None or self._num_in_shard >= SHARD_ROWS:
                writer = self._next_shard(block.schema)
            writer.write(block)
            self._num_in_shard += block.num_rows

    def _next_shard(self, schema: pa.Schema) -> ArrowWriter:
        if self._writer:
            self._writer.close()
        self.names.append(shard_name(self._split, len(self.names)))
        self._writer = ArrowWriter(self._folder / self.names[-1], schema)
        self._num_in_shard = 0
        return self._writer


def split_blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in blocks, of which all but the last are full."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        yield table.slice(start, BLOCK_ROWS)
