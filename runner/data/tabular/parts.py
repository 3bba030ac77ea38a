"""Parts of a table: some row groups of a file, or a whole file, which are processed together.

The division depends on the files only, or is stored with the parts, so that any process can
continue the work.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.split_setting import Split
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.prepare.engine import Engine
from runner.data.tabular.splits import SplitAssigner
from runner.errors import DataError

PART_ROWS = 1 << 19


class RewritableTable(Protocol):
    """The interface of a table that is rewritten; see `TableFiles`."""

    @property
    def declared(self) -> Declared: ...
    @property
    def learnt(self) -> str | None: ...  # a folder with transforms that were fitted elsewhere
    @property
    def split_seed(self) -> int: ...
    @property
    def max_bad_rows(self) -> int: ...
    @property
    def mix(self) -> bool: ...
    @property
    def files(self) -> Mapping[str, Sequence[DataFile]]: ...
    @property
    def splits(self) -> Container[str]: ...  # that are prepared
    @property
    def files_prepared(self) -> Mapping[str, Sequence[DataFile]]: ...
    @property
    def schemas(self) -> Mapping[str, pa.Schema]: ...  # path -> the types of a file's columns
    @property
    def row_split(self) -> Split: ...
    @property
    def skips_bad_rows(self) -> bool: ...
    @property
    def columns_read(self) -> list[str]: ...
    def find_parts_of_texts(self, work_folder: Path, engine: Engine) -> None:
        """Find the parts of large text files, if several workers share them."""

    def rows_of_groups(self, file: DataFile) -> list[int] | None:
        """Return the rows of every row group of a file; None if it is one part."""

    def read_chunks(
        self, file: DataFile, columns: list[str], row_groups: Container[int] | None = None
    ) -> Iterator[RowChunk]:
        """Yield the rows of a file, or of some row groups.

        Every pass sees the same rows, readable or not, and the same malformed lines, whichever
        columns it reads: splits draw a number per row, and a pass uses results of earlier ones.
        """

    def num_rows_estimate(self) -> int: ...


@dataclass(frozen=True)
class Part:
    """Consecutive rows of one file."""

    number: int
    split: str  # the split of the file's path; `row_split` divides the rows of `train` further
    file_number: int  # index among the files of that split
    file: DataFile
    first_row: int = 0
    row_groups: tuple[int, ...] | None = None  # None: the whole file


def find_parts(table: RewritableTable) -> list[Part]:
    """Return all parts of a table, in the order of their rows."""
    parts: list[Part] = []
    for split, files in table.files_prepared.items():
        for file_number, file in enumerate(files):
            counts = table.rows_of_groups(file)
            pieces = [(0, None)] if counts is None else list(_group_rows(counts))
            for first_row, groups in pieces:
                parts.append(Part(len(parts), split, file_number, file, first_row, groups))
    return parts


def _group_rows(counts: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...] | None]]:
    """Yield the first row of each part of a file, and its row groups."""
    first_row = num_rows = 0
    groups: list[int] = []
    for number, count in enumerate(counts):
        if groups and num_rows + count > PART_ROWS:
            yield first_row, tuple(groups)
            first_row, num_rows, groups = first_row + num_rows, 0, []
        groups.append(number)
        num_rows += count
    yield first_row, tuple(groups)


def check_num_rows(place: object, num_rows: int, num_before: int) -> None:
    """Check that two passes over a file, or a part of it, have seen the same number of rows.

    Raises:
        DataError: naming the place.
    """
    if num_rows != num_before:
        raise DataError(
            f"{place}: a pass over the rows brought {num_before:,} and the next one {num_rows:,}; "
            "each must bring the same rows in the same order"
        )


def iterate_split_chunks(
    table: RewritableTable, columns: list[str], split_starts: Mapping[str, float]
) -> Iterator[tuple[RowChunk, dict[str, np.ndarray]]]:
    """Yield all rows, with a mask of rows for each split."""
    for part in find_parts(table):
        yield from iterate_part(table, part, columns, split_starts)


def iterate_part(
    table: RewritableTable, part: Part, columns: list[str], split_starts: Mapping[str, float]
) -> Iterator[tuple[RowChunk, dict[str, np.ndarray]]]:
    """Yield the rows of a part, with a mask of rows for each split."""
    split, place = table.row_split, (part.file_number, part.first_row)
    assigner = SplitAssigner(split, table.split_seed, split_starts, *place)
    split_column = [split.column] if split.column else []
    to_read = list(dict.fromkeys([*columns, *(split_column if part.split == "train" else [])]))
    for chunk in table.read_chunks(part.file, to_read, part.row_groups):
        if part.split == "train":
            chunk, masks = assigner.assign(chunk)
        else:
            masks = {part.split: np.ones(chunk.num_rows, bool)}
        if chunk.malformed_lines:  # rows at the end, which belong to no split
            none = np.zeros(len(chunk.malformed_lines), bool)
            masks = {name: np.concatenate([mask_R, none]) for name, mask_R in masks.items()}
        yield chunk, masks
