"""Files of rows in blocks: Parquet of whomever, and Arrow files that we have written.

What is prepared is read at every epoch, so it lies on the disk as it lies in memory: reading a row
of 41 columns from an Arrow file takes 45 ns, checksums with it, from Parquet 180 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from runner.errors import DataError

ARROW_SUFFIX = ".arrow"
CHECKSUMS_KEY, ROW_COUNTS_KEY = b"checksums", b"rows"  # in the metadata of a block, and of the file
# What Arrow raises for damaged files; the last one for names of columns that are no text any more
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


class BlockFile(Protocol):
    """An open file. For one thread at a time."""

    block_kind: str  # what a block is called there
    schema: pa.Schema
    rows_per_block: list[int]  # rows of each block

    def read(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Columns of blocks laid end to end. Raises: one of UNREADABLE for what is damaged."""

    def close(self) -> None: ...


def open_blocks(path: Path) -> BlockFile:
    """Raises: DataError naming the file when it is missing, cut, or contradicts itself."""
    kind, opened = (
        ("Arrow", ArrowBlockFile) if path.suffix == ARROW_SUFFIX else ("Parquet", ParquetBlockFile)
    )
    try:
        return opened(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except READ_ERRORS as error:
        raise DataError(f"{path}: not a readable {kind} file ({first_line(error)})") from error


def read_blocks(path: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rows of a file; columns: of columns, none: all."""
    with closing(open_blocks(path)) as opened:
        return opened.read(range(len(opened.rows_per_block)), columns or opened.schema.names)


class ParquetBlockFile:
    """A block is a row group."""

    block_kind = "row group"

    def __init__(self, path: Path) -> None:
        # No memory map: a file cut while it is read would end the process by SIGBUS.
        self._file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        self.schema, self.rows_per_block = read_footer(self._file, str(path))

    def read(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        return self._file.read_row_groups(list(numbers), columns=list(columns), use_threads=False)

    def close(self) -> None:
        self._file.close()


class ArrowBlockFile:
    """A block is a record batch, with a checksum of each of its columns."""

    block_kind = "record batch"

    def __init__(self, path: Path) -> None:
        self._source = pa.OSFile(str(path), "rb")
        try:
            self._file = self._opened([])
            self.schema = self._file.schema
            _ = self.schema.names  # decodes them
            self.rows_per_block = _counts(self._opened([0]))
        except BaseException:
            self._source.close()
            raise
        self._names = tuple(self.schema.names)

    def read(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        if tuple(columns) != self._names:
            self._names = tuple(columns)
            self._file = self._opened(sorted(self.schema.get_field_index(n) for n in columns))
        places = [self.schema.get_field_index(n) for n in self._file.schema.names]
        blocks = []
        for number in numbers:
            block, metadata = self._file.get_batch_with_custom_metadata(number)
            sums = np.frombuffer((metadata or {}).get(CHECKSUMS_KEY, b""), np.uint64)
            if len(sums) != len(self.schema) or block.num_rows != self.rows_per_block[number]:
                raise pa.ArrowInvalid("is not what was written")
            block.validate()  # else damaged lengths would be believed
            for place, column in zip(places, block.columns):
                if compute_checksum(column) != sums[place]:
                    name = self.schema.names[place]
                    raise pa.ArrowInvalid(f"column {name!r}: wrong checksum")
            blocks.append(block)
        return pa.Table.from_batches(blocks).select(list(columns))

    def close(self) -> None:
        self._source.close()

    def _opened(self, fields: list[int]) -> pa.ipc.RecordBatchFileReader:
        """fields: numbers of columns; empty: all."""
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return pa.ipc.open_file(self._source, options=options)


class ArrowWriter(AbstractContextManager["ArrowWriter"]):
    """Writes a file that `ArrowBlocks` reads."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = pa.OSFile(str(path), "wb")
        self._counts: list[int] = []
        self._metadata: dict[bytes, bytes] = {}
        self._file = pa.ipc.new_file(self._sink, schema)

    def write(self, table: pa.Table) -> None:
        """One block."""
        (block,) = table.combine_chunks().to_batches()
        # as it will be read: the buffers of a slice are those of the whole
        block = pa.ipc.read_record_batch(block.serialize(), self._schema)
        sums = np.array([compute_checksum(column) for column in block.columns], np.uint64)
        self._counts.append(block.num_rows)
        counts = np.array(self._counts, np.int64).tobytes()
        self._file.write_batch(
            block, custom_metadata={CHECKSUMS_KEY: sums.tobytes(), ROW_COUNTS_KEY: counts}
        )

    def close(self) -> None:
        self._file.close()
        self._sink.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def compute_checksum(column: pa.Array) -> int:
    """XXH3, 64 bits, of all buffers and of what says how to read them. It finds damage, not
    malice."""
    total = xxhash.xxh3_64()
    for buffer in column.buffers():
        if buffer is not None:
            total.update(buffer)
    total.update(b"%d %d" % (len(column), column.null_count))
    if pa.types.is_list(column.type):
        total.update(b" %d %d" % (len(column.values), column.values.null_count))
    return total.intdigest()


def _counts(file: pa.ipc.RecordBatchFileReader) -> list[int]:
    """Rows of each block: the last one knows those of all, so that opening reads one."""
    if not file.num_record_batches:
        return []
    _, metadata = file.get_batch_with_custom_metadata(file.num_record_batches - 1)
    counts = np.frombuffer((metadata or {}).get(ROW_COUNTS_KEY, b""), np.int64).tolist()
    if len(counts) != file.num_record_batches or min(counts) < 0:
        raise pa.ArrowInvalid("its blocks are not those that were written")
    return counts


def read_footer(opened: pq.ParquetFile, path: str) -> tuple[pa.Schema, list[int]]:
    """Column types, and the number of rows of every row group.

    Raises: DataError for a footer that contradicts itself, or that is no footer any more.
    """
    try:
        found, metadata = opened.schema_arrow, opened.metadata
        counts = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        _ = found.names  # decodes them
    except READ_ERRORS as error:
        raise DataError(f"{path}: not a readable Parquet file ({first_line(error)})") from error
    if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
        raise DataError(
            f"{path}: damaged footer: {metadata.num_rows} rows, but {sum(counts)} in its row groups"
        )
    return found, counts


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
