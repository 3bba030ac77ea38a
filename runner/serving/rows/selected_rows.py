"""The rows of one split of a table. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from runner.data.files.read_files import RowChunk
from runner.data.tabular.parts import RewritableTable, iterate_split_chunks


@dataclass(frozen=True)
class SelectedRows(RowChunk):
    """Some rows of a chunk, with their positions in it."""

    chunk: RowChunk | None = None
    rows_R: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def describe_row(self, row: int) -> str:
        assert self.chunk is not None
        # `first_row` is above 0 in a slice of these rows
        return self.chunk.describe_row(int(self.rows_R[self.first_row + row]))


def rows_of_split(
    table: RewritableTable, times: Mapping[str, float], split: str
) -> Iterator[RowChunk]:
    """Yield the rows of a split in the order of evaluations.

    A malformed line becomes a row without a table in the first split of its chunk.

    Args:
        times: where the splits begin in time, as determined by the training.
    """
    for chunk, masks in iterate_split_chunks(table, table.columns_read, times):
        mask_R = masks.get(split, np.zeros(chunk.num_rows, bool))[: chunk.num_rows]
        if mask_R.any():
            rows_R, mask = np.flatnonzero(mask_R), pa.array(mask_R)
            yield SelectedRows(
                chunk.file,
                chunk.row_group,
                0,
                len(rows_R),
                None if chunk.table is None else chunk.table.filter(mask),
                chunk.problem,
                {name: texts.filter(mask) for name, texts in chunk.invalid_values.items()},
                chunk=chunk,
                rows_R=rows_R,
            )
        for line, text in chunk.malformed_lines if next(iter(masks)) == split else ():
            yield RowChunk(chunk.file, None, line, 1, None, f"{chunk.file}: line {line}: {text}")
