"""Samples rows of a table, from which its schema is proposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.core.blocks import READ_ERRORS
from runner.data.files.arrow_files import ARROW_FORMATS, read_arrow_chunks
from runner.data.files.file_list import DataFile
from runner.data.files.partitions import append_partitions, columns_in_file
from runner.data.files.read_files import (
    decode_dictionaries,
    is_nested,
    is_text,
    open_parquet_file,
    unpack_columns,
)
from runner.data.files.read_text import TextFormat, read_text_chunks
from runner.data.files.text_values import NUMBER_PATTERN
from runner.data.proposal.columns.sample_statistics import Sample
from runner.errors import DataError, first_line

SAMPLE_ROWS = 200_000
SAMPLE_TEXT_BYTES = 1 << 28  # of the texts of Parquet files
SMALL_PLACES = 100_000  # columns of row groups, where these are so small that 100 have few rows
SAMPLE_PLACES = 100  # files, folders that give columns, and row groups of a file, and a few more


def sample_rows(
    files: Sequence[DataFile], format_: str, text_format: TextFormat | None, schema: pa.Schema
) -> Sample:
    """Return rows from several places of the files, so that a sorted file does not mislead.

    They are in the order of the files.
    """
    numbered: list[tuple[int, pa.Table]] = []
    wrong: dict[str, list[pa.Array]] = {}
    malformed: list[str] = []
    count = 0
    parts = _sample_tables(files, format_, text_format, schema, malformed)
    for number, table, invalid_values in parts:
        numbered.append((number, table.slice(0, SAMPLE_ROWS - count)))
        for name, texts in invalid_values.items():
            wrong.setdefault(name, []).append(texts.slice(0, SAMPLE_ROWS - count).drop_null())
        count += numbered[-1][1].num_rows
        if count >= SAMPLE_ROWS:
            break
    tables = [table for _, table in sorted(numbered, key=lambda pair: pair[0])]
    wrong_texts = {name: pa.concat_arrays(arrays) for name, arrays in wrong.items()}
    retyped = [
        pa.field(name, pa.string() if _all_match(texts, r"^\s*[+-]?\d+\s*$") else pa.float64())
        for name, texts in wrong_texts.items()
        if pt.is_integer(schema.field(name).type) and _all_match(texts, NUMBER_PATTERN)
    ]
    if retyped:  # the first rows, from which the types are guessed, had no fraction or long id
        for field in retyped:
            schema = schema.set(schema.get_field_index(field.name), field)
        return sample_rows(files, format_, text_format, schema)
    if not tables:
        return Sample(schema.empty_table(), {})
    if len({table.schema for table in tables}) > 1:
        tables = [decode_dictionaries(table) for table in tables]
    joined = pa.concat_tables(tables, promote_options="permissive")
    decimal = text_format.decimal if text_format else "."
    return Sample(joined, wrong_texts, malformed, decimal)


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _sample_tables(
    files: Sequence[DataFile],
    format_: str,
    text_format: TextFormat | None,
    schema: pa.Schema,
    malformed: list[str],
) -> Iterator[tuple[int, pa.Table, Mapping[str, pa.Array]]]:
    """Yield the number of a file, rows of it, and texts in columns of numbers that are none.

    Args:
        malformed: gets lines that make no row.
    """
    file_schema = pa.schema([schema.field(name) for name in columns_in_file(schema, schema.names)])
    spread = _spread(len(files))
    places = spread[:3]
    has_partitions = len(file_schema) < len(schema)
    if has_partitions:  # or the columns of folders would have three values
        folders = list({tuple(f.partitions.items()): n for n, f in enumerate(files)}.values())
        places += folders[:: len(folders) // SAMPLE_PLACES + 1]
    share = -(-SAMPLE_ROWS // len(set(places)))
    for number in dict.fromkeys([*places, *spread]):
        file, left = files[number], share if has_partitions else SAMPLE_ROWS
        for piece, invalid_values in _sample_file(
            file, format_, text_format, file_schema, share, malformed
        ):
            table = append_partitions(piece.slice(0, left), file, schema, schema.names)
            yield number, table, {n: texts.slice(0, left) for n, texts in invalid_values.items()}
            left -= table.num_rows
            if not left:
                break


def _spread(count: int, most: int = SAMPLE_PLACES) -> list[int]:
    """Return numbers below `count`: first, middle and last, about 100 between, and up to `most`."""
    ends = [0, count // 2, count - 1] if count else []
    coarse, fine = (range(0, count, count // places + 1) for places in (SAMPLE_PLACES, most))
    return list(dict.fromkeys([*ends, *coarse, *fine]))


def _sample_file(
    file: DataFile,
    format_: str,
    text_format: TextFormat | None,
    schema: pa.Schema,
    share: int,
    malformed: list[str],
) -> Iterator[tuple[pa.Table, Mapping[str, pa.Array]]]:
    """Yield rows of a file: all of a text file, of another at most `share`.

    Raises:
        DataError: naming a row group that cannot be read.
    """
    left = share
    if format_ in ARROW_FORMATS:
        for chunk in read_arrow_chunks(file, format_, schema.names):
            if chunk.table is not None:
                yield chunk.table.slice(0, left), {}
            left -= chunk.num_rows
            if left <= 0:
                return
        return
    if text_format:
        types = {f.name: pa.string() if pt.is_null(f.type) else f.type for f in schema}
        for chunk in read_text_chunks(file, types, text_format, skip_bad_rows=True):
            malformed += chunk.line_problems
            if chunk.table is not None:
                yield chunk.table, chunk.invalid_values
            if len(malformed) >= SAMPLE_ROWS:  # it is written in another way
                return
        return
    tables, room = {}, SAMPLE_TEXT_BYTES
    # read as dictionaries: a small file with repeated values may hold any amount of text
    texts = [f.name for f in schema if is_text(f.type) and not is_nested(schema, f.name)]
    with open_parquet_file(file, texts) as opened:
        most = max(SAMPLE_PLACES, SMALL_PLACES // max(50, len(schema)))
        for group in _spread(opened.num_row_groups, most):
            num_rows = min(left, -(-share // 3))
            try:
                batch = next(opened.iter_batches(num_rows, row_groups=[group]), None)
            except READ_ERRORS as error:
                raise DataError(f"{file}: row group {group}: {first_line(error)}") from error
            if batch is not None:
                table = unpack_columns(pa.Table.from_batches([batch]))
                end_R = _text_bytes(table).cumsum()
                within = int(np.searchsorted(end_R, min(room, SAMPLE_TEXT_BYTES // 3), "right"))
                tables[group] = decode_dictionaries(table.slice(0, max(1, within)))
                room -= int(end_R[:within].max(initial=0))
                left -= batch.num_rows
            if not left or room <= 0:
                break
    yield from ((tables[group], {}) for group in sorted(tables))


def _text_bytes(table: pa.Table) -> np.ndarray:
    """Return how many bytes the texts of each row take once they leave their dictionaries, [R]."""
    sizes_R = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        if pt.is_dictionary(column.type) and is_text(column.type) and column.num_chunks:
            [values] = column.chunks  # of one batch
            sizes_R += (
                pc.binary_length(values.dictionary).take(values.indices).fill_null(0).to_numpy()
            )
    return sizes_R
