"""The rows of a chunk that are of one split. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from runner.data.files.read_files import RowChunk


@dataclass(frozen=True)
class SelectedRows(RowChunk):
    """Some rows of a chunk, with their positions in it."""

    chunk: RowChunk | None = None
    rows_R: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def describe_row(self, row: int) -> str:
        assert self.chunk is not None
        # `first_row` is above 0 in a slice of these rows
        return self.chunk.describe_row(int(self.rows_R[self.first_row + row]))


def select_rows(chunk: RowChunk, mask_R: np.ndarray, *, gets_lines: bool) -> Iterator[RowChunk]:
    """Yield the rows of a mask, then a row for each malformed line that belongs to this split."""
    mask_R = mask_R[: chunk.num_rows]
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
    for line, text in chunk.malformed_lines if gets_lines else ():
        yield RowChunk(chunk.file, None, line, 1, None, f"{chunk.file}: line {line}: {text}")
