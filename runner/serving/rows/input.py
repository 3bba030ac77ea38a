"""Reads the rows of a prediction, and cuts them into parts of a fixed size. Imports no torch.

A part is scored and written by a single rank, and its rows depend on the input only.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import text_column_types
from runner.data.columns.split_setting import Split
from runner.data.files.file_columns import check_same_schema
from runner.data.files.file_list import SUFFIXES, DataFile, find_files, names_in
from runner.data.files.read_files import RowChunk, unpack_columns
from runner.data.files.text_blocks import find_binary_format
from runner.data.tabular.table_files import TableFiles
from runner.errors import DataError, UserError

MEMORY = DataFile("the table")  # names a table in memory in messages
LocatedChunk = tuple[int, RowChunk]  # the number of a chunk's first row in the input, and the chunk


@dataclass(frozen=True)
class InputTable(TableFiles):
    """Files to score, read as the files of a training. `path` is a list in the order of rows.

    Args:
        features: the columns of the model's inputs, without labels, weights and groups.
        keep: columns that are carried into the output. Those of text files stay texts, unless the
            model reads them as numbers.
        id_types: column of ids -> its type in training, if known.
    """

    features: Declared = field(default_factory=lambda: Declared(labels=()))
    keep: tuple[str, ...] = ()
    id_types: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def declared(self) -> Declared:
        return self.features

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        """The files under `train`, each once: paths as given, the files of each sorted by name."""
        files = [f for path in self.path for f in find_files(path, self.format, key="")]
        return {"train": list({str(file): file for file in files}.values())}

    @property
    def columns_read(self) -> list[str]:
        return list(dict.fromkeys([*self.features.columns, *self.keep]))

    @cached_property
    def optional_columns(self) -> frozenset[str]:
        return self.features.optional_columns - frozenset(self.keep)

    def needed_by(self, column: str) -> str:
        if column not in self.features.columns:
            return "--keep names"
        if column in [spec.column for spec in self.features.ids if spec.max_length]:
            return (
                "the run has learnt from: a list of ids in each row, the oldest first, in a text "
                "file as JSON, such as [5, 7]; of raw events `python -m runner histories` makes it "
                "(docs/interactions.md, Recommend)"
            )
        if column in [spec.column for spec in self.features.ids]:
            return (
                "the run has learnt from; a column without a value will do where an id is unknown"
            )
        return "the run has learnt from"

    @property
    def text_types(self) -> dict[str, pa.DataType]:
        return {**dict.fromkeys(self.keep, pa.string()), **super().text_types}

    @property
    def partition_texts(self) -> Collection[str]:
        """Columns of folders that are read as texts: ids, unless they were numbers in training."""
        types = text_column_types(self.features, Split("whole"))
        numbers = {name for name, kind in self.id_types.items() if kind == "integer"}
        return [n for n, type_ in types.items() if type_ == pa.string() and n not in numbers]

    @property
    def first_schema(self) -> tuple[str, pa.Schema]:
        """The first file, and the types of its columns as read."""
        return next(iter(self.schemas.items()))

    def num_rows(self, counted: int) -> int:
        """Return the number of rows; `counted` is the number of those yielded or skipped."""
        return self.num_rows_estimate() if self.format == "parquet" else counted

    def empty_rows(self) -> pa.Table:
        """Return the columns that are read, without a row."""
        _, schema = self.first_schema
        types = pa.schema([(name, schema.field(name).type) for name in self.columns_read])
        return unpack_columns(types.empty_table())

    def located_chunks(self, is_wanted: Callable[[int, int], bool]) -> Iterator[LocatedChunk]:
        """Yield the rows in order.

        Args:
            is_wanted: takes a first row and the row after the last one; row groups of Parquet
                files for which it is false are not read.
        """
        start = 0
        for file in self.files["train"]:
            if self.format != "parquet":
                for chunk in self.read_chunks(file, self.columns_read):
                    for piece in place_malformed_lines(chunk):
                        yield start, piece
                        start += piece.num_rows
                continue
            starts, wanted = [], set()
            for group, count in enumerate(self.rows_per_group[str(file)]):
                starts.append(start)
                if count and is_wanted(start, start + count):
                    wanted.add(group)
                start += count
            for chunk in self.read_chunks(file, self.columns_read, wanted):
                assert chunk.row_group is not None
                yield starts[chunk.row_group] + chunk.first_row, chunk


@dataclass(frozen=True)
class InputPart:
    """Part `number` of the input: its rows in order, as slices of the files' chunks."""

    number: int
    first_row: int
    pieces: tuple[RowChunk, ...]

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)


def cut_into_parts(
    chunks: Iterable[LocatedChunk], part_rows: int, is_wanted: Callable[[int], bool]
) -> Iterator[InputPart]:
    """Cut rows into parts of `part_rows` rows, of which the last one may be shorter.

    It holds a part and a chunk in memory.

    Args:
        chunks: in the order of their rows; rows of parts that are not wanted may be missing.
        is_wanted: takes the number of a part, and returns whether it is yielded.
    """
    pieces: list[RowChunk] = []
    current = -1
    for start, chunk in chunks:
        at = 0
        while at < chunk.num_rows:
            number = (start + at) // part_rows
            stop = min(chunk.num_rows, (number + 1) * part_rows - start)
            if pieces and number != current:
                yield InputPart(current, current * part_rows, tuple(pieces))
                pieces = []
            current = number
            if is_wanted(number):
                pieces.append(slice_chunk(chunk, at, stop))
            at = stop
    if pieces:
        yield InputPart(current, current * part_rows, tuple(pieces))


def slice_chunk(chunk: RowChunk, start: int, stop: int) -> RowChunk:
    """Return rows [start, stop) of a chunk, with their positions in the file."""
    if start == 0 and stop == chunk.num_rows:
        return chunk
    return replace(
        chunk,
        first_row=chunk.first_row + start,
        num_rows=stop - start,
        table=None if chunk.table is None else chunk.table.slice(start, stop - start),
        invalid_values={n: a.slice(start, stop - start) for n, a in chunk.invalid_values.items()},
        find_lines=chunk.find_lines and partial(_find_lines, chunk, start, stop),
    )


def _find_lines(chunk: RowChunk, start: int, stop: int) -> Sequence[int]:
    return chunk.find_lines()[start:stop] if chunk.find_lines else ()


def place_malformed_lines(chunk: RowChunk) -> Iterator[RowChunk]:
    """Yield a chunk's rows, with a row without a table in the place of each malformed line."""
    lines, done = (_find_lines(chunk, 0, chunk.num_rows) if chunk.malformed_lines else ()), 0
    plain = replace(chunk, malformed_lines=())  # the chunk finds the lines once
    for line, text in chunk.malformed_lines:
        before = bisect_left(lines, line)
        if before > done:
            yield slice_chunk(plain, done, before)
        yield RowChunk(chunk.file, None, line, 1, None, f"{chunk.file}: line {line}: {text}")
        done = before
    if done < chunk.num_rows:
        yield slice_chunk(plain, done, chunk.num_rows)


class MemoryTable:
    """A table in memory to score, with the same checks as files.

    Raises:
        DataError: for a column that is missing.
    """

    def __init__(self, table: pa.Table, features: Declared, keep: Sequence[str]) -> None:
        columns = list(dict.fromkeys([*features.columns, *keep]))
        check_same_schema({str(MEMORY): table.schema}, columns)
        self._table = table.select(columns)

    def empty_rows(self) -> pa.Table:
        """Return the columns that are read, without a row."""
        return unpack_columns(self._table.slice(0, 0))

    def located_chunks(self, max_rows: int) -> Iterator[LocatedChunk]:
        """Yield the rows in order, at most `max_rows` at a time."""
        for start in range(0, self._table.num_rows, max_rows):
            rows = self._table.slice(start, max_rows).combine_chunks()
            table = unpack_columns(rows)
            yield start, RowChunk(MEMORY, 0, start, rows.num_rows, table, part_name="")


def find_format(paths: Sequence[str], preferred: str) -> str:
    """Return the format of the input's files, by their endings or first bytes.

    Args:
        paths: files, folders, globs or URLs.
        preferred: the format of the run's own data, used if endings do not decide.

    Raises:
        UserError: for files of several formats.
    """
    formats = {f for path in paths for f in _formats_of(path)}
    if not formats or (preferred in formats and len(paths) == 1):
        return preferred
    if len(formats) > 1:
        raise UserError(
            f"INPUT: has files of several formats ({', '.join(sorted(formats))}); name those of one"
        )
    return formats.pop()


def _formats_of(path: str) -> set[str]:
    names = [path]
    if binary := find_binary_format(path):
        return {binary}
    if "://" not in path and os.path.isdir(path):
        names = names_in(path)
    return {
        format_
        for name in names
        for format_, suffixes in SUFFIXES.items()
        if name.lower().endswith(tuple(s for s in suffixes if s != ".txt"))
    }


def check_kept_columns(keep: Sequence[str], written: Sequence[str]) -> None:
    """Check that no kept column has the name of an output column.

    Raises:
        DataError: naming the column.
    """
    for name in keep:
        if name in written:
            raise DataError(
                f"--keep {name}: is the name of a column of the result; rename it in the input"
            )
