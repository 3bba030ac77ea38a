"""Reads text files: CSV, TSV and JSON lines, plain or compressed, in blocks of whole lines.

Arrow parses one block at a time, from memory and in the calling thread. If it read the file itself,
it would read ahead in its own threads, which call back into Python: while the interpreter ends, or
waits for these threads to end, such a call never returns.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from runner.data.files.bad_rows import SKIP_HINT
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.files.read_json_lines import infer_json_schema, read_json_chunks
from runner.data.files.text_blocks import (
    BLOCK_BYTES,
    TEXT_ERRORS,
    TextBlocks,
    new_name,
    read_blocks,
)
from runner.data.files.text_lines import (
    count_lines,
    find_row_lines,
    is_outside_quotes,
    mask_line_breaks,
)
from runner.data.files.text_values import MISSING_NUMBERS, cast_texts
from runner.errors import DataError, first_line, shell_path

INFERENCE_BYTES = 1 << 20  # at the beginning of a file, from which the types are inferred
MAX_COLUMNS = 100_000
LONGEST_INTEGER = 2.0**63  # larger integers are ids, of which a float keeps only some digits


@dataclass(frozen=True)
class TextFormat:
    """The format of text files."""

    delimiter: str = ","
    quote: str = '"'  # empty: nothing is quoted
    column_names: tuple[str, ...] = ()  # empty: they are in the first line
    json_lines: bool = False  # each line is a JSON object; there are no delimiters and no names
    decimal: str = "."  # the character before the fraction of a number


def default_text_format(format_: str) -> TextFormat:
    """Return the format of text files if no delimiter is set."""
    return TextFormat("\t" if format_ == "tsv" else ",", json_lines=format_ == "jsonl")


def infer_text_schema(file: DataFile, format_: TextFormat) -> pa.Schema:
    """Return the names and inferred types of the columns of a text file, from its first block.

    Raises:
        DataError: naming a file that cannot be read.
    """
    try:
        num_bytes = BLOCK_BYTES if format_.json_lines else INFERENCE_BYTES
        block = _read_first_block(file, num_bytes, "" if format_.json_lines else format_.quote)
        if not block:
            raise DataError(f"{file}: has no rows, and no line with names")
        codecs.getincrementaldecoder("utf-8")().decode(block)  # a block may end within a character
        check_width(file, block, format_)
        if format_.json_lines:
            return infer_json_schema(block, file)
        # malformed lines are reported by `read_text_chunks`
        table = _parse_csv(block, format_, invalid=lambda row: "skip")
        assert table.schema.names is not None  # decodes them, which may raise
        types = map(_readable_type, table.columns)
        return pa.schema(list(zip(table.schema.names, types)))
    except UnicodeDecodeError as error:
        fix = _explain_conversion(error.object, file)
        problem = f"no text in UTF-8: byte {error.object[error.start]:#04x} at {error.start:,}"
        raise DataError(f"{file}: {problem}; {fix}") from error
    except TEXT_ERRORS as error:
        raise DataError(f"{file}: {first_line(error)}") from error


def check_width(file: DataFile, block: bytes, format_: TextFormat) -> None:
    """Check that a line, possibly of a file of another kind, does not have millions of columns.

    Each column takes 10 kB while it is read.

    Args:
        block: the first rows.

    Raises:
        DataError: naming the file.
    """
    if format_.json_lines:
        widths = [line.count(b'":') for line in block.splitlines()]
    else:  # a list in quotes may contain the delimiter
        first = re.sub(rb'"[^"]*"', b"", block.partition(b"\n")[0])
        widths = [first.count(format_.delimiter.encode())]
    if max(widths, default=0) >= MAX_COLUMNS:
        raise DataError(
            f"{file}: a line has over {MAX_COLUMNS:,} columns: is it a table? Write values that "
            "belong together as a list in one column"
        )


def unify_guesses(schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Return the columns of each file with types that also fit the values of the others.

    A column that is empty in a file does not show its type, and other files may have larger whole
    numbers, or fractions.
    """
    types: dict[str, pa.DataType] = {}
    for f in (f for schema in schemas.values() for f in schema):
        types[f.name] = _promote(types.get(f.name, f.type), f.type)
    return {
        path: pa.schema([f.with_type(_promote(f.type, types[f.name])) for f in schema])
        for path, schema in schemas.items()
    }


def _promote(type_: pa.DataType, other: pa.DataType) -> pa.DataType:
    takes_more = pt.is_integer(type_) and other in (pa.uint64(), pa.float64())
    return other if takes_more or pt.is_null(type_) else type_


def _explain_conversion(content: bytes, file: DataFile) -> str:
    """Return commands that convert a text to UTF-8; its bytes do not show its encoding."""
    runs = re.findall(rb"[\x80-\xff]+", content)
    in_words = sum(len(run) for run in runs if len(run) > 2)  # runs of a whole word: not Latin
    is_latin = 2 * in_words < sum(map(len, runs))
    first, second = ("cp1252", "cp1250") if is_latin else ("cp1251", "gb18030")
    of_first, of_second = ("Western", "Central European") if is_latin else ("Russian", "Chinese")
    return (
        f"its encoding is not known: iconv -f {first} -t utf-8 {shell_path(file)} > "
        f"{new_name(file, 'utf8.csv')} is often right for {of_first}, and -f {second} for "
        f"{of_second} texts"
    )


def _readable_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the type with which a column is read: times of day and very long numbers are texts."""
    if pt.is_time(column.type):
        return pa.string()
    if pt.is_floating(column.type) and column.null_count < len(column):
        x = column.combine_chunks().drop_null().to_numpy()
        x = x[np.isfinite(x)]
        is_whole = bool((np.abs(x) >= LONGEST_INTEGER).any() and (x == np.rint(x)).all())
        return pa.string() if is_whole else column.type
    return column.type


def read_text_chunks(
    file: DataFile,
    types: Mapping[str, pa.DataType],
    format_: TextFormat,
    *,
    skip_bad_rows: bool,
    blocks: TextBlocks | None = None,
) -> Iterator[RowChunk]:
    """Yield the rows of a text file.

    Args:
        types: column -> the type with which it is read.
        skip_bad_rows: a value that does not fit its type becomes missing and is kept in
            `invalid_values`; otherwise such a value is an error.
        blocks: the part of the file to read; None: the whole file.

    Raises:
        DataError: naming the file, the line and the column that cannot be read.
    """
    if format_.json_lines:
        yield from read_json_chunks(file, types, skip_bad_rows=skip_bad_rows, blocks=blocks)
        return
    num_lines = 0 if blocks is None else blocks.num_lines
    is_first = blocks is None or blocks.spans[0][0] == 0
    read_as = dict.fromkeys(types, pa.string()) if skip_bad_rows else dict(types)
    names: Sequence[str] = format_.column_names
    try:
        names = names or infer_text_schema(file, format_).names
        later = replace(format_, column_names=tuple(names))
        for block in read_blocks(file, BLOCK_BYTES, blocks, format_.quote, format_.delimiter):
            malformed: list[tuple[int, str]] = []  # the row's number in the block

            def on_invalid(row: pa.csv.InvalidRow, to: Any = malformed) -> str:
                problem = f"{row.actual_columns} values, not {row.expected_columns}"
                to.append(((row.number or 1) - 1, problem))
                return "skip"

            invalid_handler = on_invalid if skip_bad_rows else None
            try:
                table = _parse_csv(block, format_ if is_first else later, read_as, invalid_handler)
            except pa.ArrowInvalid as error:
                _check_quotes(file, block, num_lines, format_)
                lines = find_row_lines(block, num_lines, None, format_.delimiter, format_.quote)
                problem = place_problem(first_line(error), names, lines)
                raise DataError(f"{file}: {problem}{SKIP_HINT}") from error
            left_out = {number for number, _ in malformed}
            if is_first and not format_.column_names:
                left_out.add(0)
            count, is_first = table.num_rows, False
            num_rows = count + len(left_out)
            if num_rows != count_lines(block):
                _check_quotes(file, block, num_lines, format_)
            find_lines = partial(
                find_row_lines, block, num_lines, num_rows, format_.delimiter, format_.quote
            )
            lines = find_lines() if malformed else ()
            invalid: dict[str, pa.Array] = {}
            if skip_bad_rows:
                table, invalid = cast_texts(table, types, format_.decimal)
            if count or malformed:
                yield RowChunk(
                    file,
                    None,
                    num_lines + 1,
                    count,
                    table,
                    invalid_values=invalid,
                    malformed_lines=tuple((lines[number], text) for number, text in malformed),
                    find_lines=cache(partial(find_lines, left_out=left_out)),
                )
            num_lines += count_lines(block)
    except TEXT_ERRORS as error:
        raise DataError(f"{file}: {first_line(error)}") from error


def _check_quotes(file: DataFile, block: bytes, before: int, format_: TextFormat) -> None:
    """Check that no value lacks its closing quote, which would make the rest of the file its value.

    Raises:
        DataError: naming the line of the row.
    """
    delimiter, quote = format_.delimiter, format_.quote
    if not quote or is_outside_quotes(block, delimiter, quote.encode()):
        return
    if mask_line_breaks(block, delimiter, quote.encode())[1]:
        line = find_row_lines(block, before, None, delimiter, quote)[-1]
        raise DataError(
            f"{file}: line {line}: a value begins with {quote}, which is not closed, so that the "
            "lines behind it would be a part of it; close it, or, if quotes are a part of the "
            "values, dataset.quote='' reads them as they are"
        )


def read_first_rows(file: DataFile) -> str:
    """Return the text of the first rows of a file, as many as the first block has.

    Raises:
        DataError: naming a file that cannot be read.
    """
    try:
        block = _read_first_block(file, INFERENCE_BYTES, TextFormat.quote)
    except TEXT_ERRORS as error:
        raise DataError(f"{file}: {first_line(error)}") from error
    return block.decode("utf-8-sig", errors="replace")


def _read_first_block(file: DataFile, num_bytes: int, quote: str) -> bytes:
    with closing(read_blocks(file, num_bytes, quote=quote)) as blocks:
        return next(blocks, b"")


def _parse_csv(
    block: bytes,
    format_: TextFormat,
    types: Mapping[str, pa.DataType] | None = None,
    invalid: object = None,
) -> pa.Table:
    table = pacsv.read_csv(
        pa.BufferReader(block),
        read_options=pacsv.ReadOptions(
            column_names=list(format_.column_names) or None,
            block_size=len(block) + 1,
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=format_.delimiter,
            quote_char=format_.quote or False,
            invalid_row_handler=invalid,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict(types or {}),
            decimal_point=format_.decimal,
            include_columns=list(types or ()),
            null_values=list(MISSING_NUMBERS),
            strings_can_be_null=False,  # NA may be a name, such as that of a country
            quoted_strings_can_be_null=True,
        ),
    )
    return _mark_empty_texts(table)


def _mark_empty_texts(table: pa.Table) -> pa.Table:
    """Return a table, as just parsed, with empty texts as missing ones, without copying texts."""
    for index, column in enumerate(table.columns):
        if pt.is_string(column.type):
            chunks = []
            for chunk in column.chunks:
                assert chunk.offset == 0, "a slice has a validity of its whole array"
                _, offsets, texts = chunk.buffers()
                is_there = pc.not_equal(chunk, "").buffers()[1]
                buffers = [is_there, offsets, texts]
                chunks.append(pa.Array.from_buffers(chunk.type, len(chunk), buffers))
            marked = pa.chunked_array(chunks, column.type)
            table = table.set_column(index, table.schema.field(index), marked)
    return table


def place_problem(message: str, names: Sequence[str], lines: Sequence[int]) -> str:
    """Replace Arrow's column number in a message by the name, and a block's row by its line."""
    message = re.sub(r"Row #(\d+)", lambda m: f"Row #{lines[int(m[1]) - 1]}", message)
    match = re.search(r"column #(\d+)", message)
    if not match or int(match[1]) >= len(names):
        return message
    return message.replace(match[0], f"column {names[int(match[1])]!r}")
