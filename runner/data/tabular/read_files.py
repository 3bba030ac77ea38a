"""A user's files as they are: their types, and their rows in pieces that know where they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as pt

from runner.data.core.blocks import READ_ERRORS, first_line, read_footer
from runner.data.tabular.file_list import DataFile
from runner.errors import DataError, nearest_hint

CHUNK_ROWS = 1 << 16
BLOCK_BYTES = 1 << 23
NUMBER_PATTERN = (
    r"^\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|[nN][aA][nN]|[iI][nN][fF])\s*$"
)
SHORT_INTEGER_PATTERN, LONG_INTEGER_PATTERN = r"^\s*[+-]?\d{1,18}\s*$", r"^\s*[+-]?\d{19}\s*$"


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of one file. Without a table they could not be read, for `problem`."""

    file: DataFile
    row_group: int | None  # row group; None: a text file, whose rows are lines
    first_row: int  # row in the row group, or line, of the first row
    num_rows: int
    table: pa.Table | None
    problem: str = ""
    invalid_values: Mapping[str, pa.Array] = field(
        default_factory=dict
    )  # column -> text of a bad value
    malformed_lines: tuple[tuple[int, str], ...] = ()  # lines that are no rows at all

    def describe_row(self, row: int) -> str:
        if self.row_group is None:
            return f"{self.file}: line {self.first_row + row}"
        return f"{self.file}: row group {self.row_group}, row {self.first_row + row}"


@dataclass(frozen=True)
class TextFormat:
    """How CSV and TSV files are written."""

    delimiter: str = ","
    quote: str = '"'  # empty: nothing is quoted
    column_names: tuple[str, ...] = ()  # empty: the first line has them
    newlines_in_values: bool = False


def open_parquet_file(file: DataFile, dictionary_columns: Sequence[str] = ()) -> pq.ParquetFile:
    """Raises: DataError naming a file that is missing, cut or not Parquet."""
    handle = file.open()
    try:
        return pq.ParquetFile(
            handle,
            pre_buffer=file.filesystem is not None,
            page_checksum_verification=True,
            read_dictionary=list(dictionary_columns),
        )
    except READ_ERRORS as error:
        handle.close()
        raise DataError(f"{file}: not a readable Parquet file ({first_line(error)})") from error


def read_parquet_schema(file: DataFile) -> tuple[pa.Schema, list[int]]:
    """Column types, and the number of rows of every row group."""
    with open_parquet_file(file) as opened:
        return read_footer(opened, str(file))


def infer_text_schema(file: DataFile, format_: TextFormat) -> pa.Schema:
    """Names and guessed types of a CSV file, from its first block."""
    try:
        with file.open() as handle:
            # lines that are no rows are judged when all are read
            options = _options(format_, 1 << 20, invalid=lambda row: "skip")
            return pacsv.open_csv(handle, **options).schema
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: {first_line(error)}") from error


def check_same_schema(schemas: Mapping[str, pa.Schema], columns: Sequence[str]) -> None:
    """Every file has every column, once, with the type it has in the first file.

    Raises: DataError naming the file, the column and the nearest one.
    """
    first_name = next(iter(schemas))
    for path, found in schemas.items():
        for name in columns:
            count = len(found.get_all_field_indices(name))
            if count == 0:
                raise DataError(f"{path}: no column {name!r}{nearest_hint(name, found.names, 3)}")
            if count > 1:
                raise DataError(f"{path}: {count} columns are called {name!r}")
            was, is_ = schemas[first_name].field(name).type, found.field(name).type
            if was != is_:
                raise DataError(
                    f"{path}: column {name!r} has type {is_}, but {was} in {first_name}"
                )


def read_parquet_chunks(
    file: DataFile, columns: Sequence[str], *, skip_bad_rows: bool
) -> Iterator[RowChunk]:
    """skip_bad_rows: a row group that cannot be read comes without a table, instead of as an error."""
    schema, counts = read_parquet_schema(file)
    texts = [n for n in columns if is_text(schema.field(n).type)]
    with open_parquet_file(file, texts) as opened:
        for group, count in enumerate(counts):
            done = 0
            try:
                for batch in opened.iter_batches(
                    CHUNK_ROWS, row_groups=[group], columns=list(columns), use_threads=False
                ):
                    table = pa.Table.from_batches([batch])
                    for column in table.columns:
                        _check_entries(column)
                    table = unpack_columns(table)
                    yield RowChunk(file, group, done, table.num_rows, table)
                    done += table.num_rows
                if done != count:
                    raise pa.ArrowInvalid(f"{done} rows, not {count} as the footer says")
            except READ_ERRORS as error:
                problem = f"{file}: row group {group}: {first_line(error)}"
                if not skip_bad_rows or done >= count:
                    raise DataError(problem) from error
                yield RowChunk(file, group, done, count - done, None, problem)


def _check_entries(column: pa.ChunkedArray) -> None:
    """Arrow trusts a file's numbers of dictionary entries. Raises: ArrowInvalid for one beyond."""
    for chunk in column.chunks:
        if pt.is_dictionary(chunk.type):
            ends = pc.min_max(chunk.indices)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is not None and not 0 <= low <= high < len(chunk.dictionary):
                raise pa.ArrowInvalid(f"entry {high} of a dictionary of {len(chunk.dictionary)}")


def read_text_chunks(
    file: DataFile, types: Mapping[str, pa.DataType], format_: TextFormat, *, skip_bad_rows: bool
) -> Iterator[RowChunk]:
    """skip_bad_rows: what is not of its type becomes missing and is told in `wrong`."""
    malformed: list[tuple[int, str]] = []
    seen = 0 if format_.column_names else 1

    def on_invalid(row: pa.csv.InvalidRow) -> str:
        what = f"{row.actual_columns} values, not {row.expected_columns}"
        malformed.append((row.number or 0, what))
        return "skip"

    given = dict.fromkeys(types, pa.string()) if skip_bad_rows else dict(types)
    options = _options(format_, BLOCK_BYTES, given, on_invalid if skip_bad_rows else None)
    names: list[str] = []
    try:
        with file.open() as handle:
            names = list(format_.column_names) or infer_text_schema(file, format_).names
            for batch in pacsv.open_csv(handle, **options):
                table = pa.Table.from_batches([batch])
                wrong: dict[str, pa.Array] = {}
                if skip_bad_rows:
                    table, wrong = _typed(table, types)
                told, malformed = tuple(malformed), []
                yield RowChunk(file, None, seen + 1, table.num_rows, table, "", wrong, told)
                seen += table.num_rows + len(told)
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: {_named(first_line(error), names)}") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: {first_line(error)}") from error


def _options(
    format_: TextFormat,
    block_size: int,
    types: Mapping[str, pa.DataType] | None = None,
    invalid: object = None,
    use_threads: bool = False,
) -> dict:
    names = list(format_.column_names)
    return {
        "read_options": pacsv.ReadOptions(
            column_names=names or None, block_size=block_size, use_threads=use_threads
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=format_.delimiter,
            quote_char=format_.quote or False,
            newlines_in_values=format_.newlines_in_values,
            invalid_row_handler=invalid,
        ),
        "convert_options": pacsv.ConvertOptions(
            column_types=dict(types or {}),
            include_columns=list(types or ()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    }


def _typed(
    table: pa.Table, types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Texts to their types; what does not fit becomes missing and is returned by column."""
    wrong: dict[str, pa.Array] = {}
    for place, (name, type_) in enumerate(types.items()):
        if pt.is_string(type_):
            continue
        texts = table[name].combine_chunks()
        whole = pt.is_integer(type_)
        fits = match_integers(texts) if whole else pc.match_substring_regex(texts, NUMBER_PATTERN)
        if pc.any(pc.invert(fits)).as_py():
            wrong[name] = pc.if_else(pc.fill_null(fits, True), pa.scalar(None, pa.string()), texts)
            texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
        table = table.set_column(place, name, strip_number(texts).cast(type_))
    return table, wrong


def match_integers(texts: pa.Array) -> pa.Array:
    """Which texts are whole numbers of 64 bits; a missing one stays missing."""
    fits = pc.match_substring_regex(texts, SHORT_INTEGER_PATTERN)
    if pc.all(fits).as_py() is not False:
        return fits
    long = pc.match_substring_regex(texts, LONG_INTEGER_PATTERN)
    digits = pc.utf8_ltrim(strip_number(texts), "-")
    largest = pc.if_else(pc.starts_with(strip_number(texts), "-"), str(2**63), str(2**63 - 1))
    return pc.or_(fits, pc.and_(long, pc.less_equal(digits, largest)))


def strip_number(texts: pa.Array) -> pa.Array:
    """Numbers as Arrow reads them: without space around them or a plus."""
    return pc.utf8_ltrim(pc.utf8_trim_whitespace(texts), "+")


def _named(message: str, names: Sequence[str]) -> str:
    """Arrow counts columns from 0; a reader wants the name."""
    found = re.search(r"column #(\d+)", message)
    if not found or int(found[1]) >= len(names):
        return message
    return message.replace(found[0], f"column {names[int(found[1])]!r}")


def unpacked_type(type_: pa.DataType) -> pa.DataType:
    """Of the values themselves: how they are packed, as a dictionary, as views or as an extension
    such as a UUID, is no matter."""
    if pt.is_dictionary(type_):
        return unpacked_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return unpacked_type(type_.storage_type)
    if pt.is_string_view(type_):
        return pa.string()
    is_bytes = pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_)
    return pa.binary() if is_bytes else type_


def unpack_columns(table: pa.Table) -> pa.Table:
    """Without views, and without dictionaries but of texts, which are quick to hash."""
    for place, column in enumerate(table.schema):
        plain = unpacked_type(column.type)
        if plain != column.type and not (pt.is_dictionary(column.type) and is_text(plain)):
            table = table.set_column(place, column.name, _cast(table[column.name], plain))
    return table


def _cast(values: pa.ChunkedArray, plain: pa.DataType) -> pa.ChunkedArray:
    if isinstance(values.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type.storage_type)
    return values.cast(plain)


def is_text(type_: pa.DataType) -> bool:
    type_ = unpacked_type(type_)
    return (
        pt.is_string(type_)
        or pt.is_large_string(type_)
        or pt.is_binary(type_)
        or pt.is_large_binary(type_)
    )
