"""Reads JSON lines: files with one JSON object per line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk, flatten_schema, flatten_structs
from runner.data.files.text_blocks import (
    BLOCK_BYTES,
    TEXT_ERRORS,
    TextBlocks,
    new_name,
    read_blocks,
    unpack_command,
)
from runner.data.files.text_lines import count_lines, find_row_lines
from runner.errors import DataError, first_line


def infer_json_schema(block: bytes, file: DataFile) -> pa.Schema:
    """Return the names and guessed types of the columns, from the first block of a file.

    Objects within an object give columns such as `user.id`.

    Raises:
        DataError: if no line is a JSON object. `read_json_chunks` reports single malformed lines.
    """
    return flatten_schema(_infer_schema(block, file))


def _infer_schema(block: bytes, file: DataFile) -> pa.Schema:
    if block.lstrip().startswith(b"["):
        raise DataError(
            f"{file}: is one JSON list, not an object a line: jq -c '.[]' {file.name} "
            f"> {new_name(file, 'rows.jsonl')}"
        )
    if re.match(rb"\s*\{\s*u?'", block):
        raise DataError(
            f"{file}: has objects of Python, not of JSON: {unpack_command(file)} | python3 -c "
            "'import ast, json, sys; [print(json.dumps(ast.literal_eval(s))) for s in sys.stdin]' "
            f"> {new_name(file, 'rows.jsonl')} converts them"
        )
    try:
        return _with_typed_lists(_parse_json(block, None).schema)
    except pa.ArrowInvalid as error:
        parsed = list(_parse_json_lines(block, None, first_line_number=1))
        tables = [table for table, _, problem in parsed if not problem]
        if not tables:
            _, line, problem = parsed[0]
            raise DataError(f"{file}: line {line}: {problem}") from error
        return _with_typed_lists(_unify_most(tables))


def _unify_most(tables: Iterable[pa.Table]) -> pa.Schema:
    """Return the schema of most rows; rows that contradict it will be read as malformed."""
    groups: list[tuple[pa.Schema, int]] = []  # schemas that contradict each other, and their rows
    for table in tables:
        for n, (schema, num_rows) in enumerate(groups):
            try:
                unified = pa.unify_schemas([schema, table.schema], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                continue
            groups[n] = unified, num_rows + table.num_rows
            break
        else:
            groups.append((table.schema, table.num_rows))
    return max(groups, key=lambda schema_and_rows: schema_and_rows[1])[0]


def _with_typed_lists(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which lists that are empty in the whole block are lists of texts."""
    empty, texts = pa.list_(pa.null()), pa.list_(pa.string())
    return pa.schema([f.with_type(texts) if f.type == empty else f for f in schema])


def read_json_chunks(
    file: DataFile,
    types: Mapping[str, pa.DataType],
    *,
    skip_bad_rows: bool,
    blocks: TextBlocks | None = None,
) -> Iterator[RowChunk]:
    """Yield the rows of a file of JSON lines. A line that cannot be read counts as malformed.

    Raises:
        DataError: naming the file and the line that cannot be read.
    """
    schema = pa.schema(_nest(file, types)) if types else None
    num_lines = 0 if blocks is None else blocks.num_lines
    try:
        for block in read_blocks(file, BLOCK_BYTES, blocks):
            tables, malformed = [], []
            for table, line, problem in _parse_json_lines(block, schema, num_lines + 1):
                if problem and not skip_bad_rows:
                    raise DataError(f"{file}: line {line}: {problem}")
                if problem:
                    malformed.append((line, problem))
                else:
                    flat = flatten_structs(table)
                    tables.append(flat if schema is None else flat.select(list(types)))
            joined = pa.concat_tables(tables) if tables else pa.schema(types).empty_table()
            count, bad = joined.num_rows, {line for line, _ in malformed}
            find_lines = partial(find_row_lines, block, num_lines, count + len(malformed))
            if bad:
                left_out = {row for row, line in enumerate(find_lines()) if line in bad}
                find_lines = partial(find_lines, left_out=left_out)
            yield RowChunk(
                file,
                None,
                num_lines + 1,
                count,
                joined,
                malformed_lines=tuple(malformed),
                find_lines=cache(find_lines),
            )
            num_lines += count_lines(block)
    except TEXT_ERRORS as error:
        raise DataError(f"{file}: {first_line(error)}") from error


def _nest(file: DataFile, types: Mapping[str, pa.DataType]) -> list[pa.Field]:
    """Return the columns as in the file, which may have nested objects."""
    if not any("." in name for name in types):
        return [pa.field(name, type_) for name, type_ in types.items()]
    with closing(read_blocks(file, BLOCK_BYTES)) as blocks:
        inferred = _infer_schema(next(blocks, b""), file)

    def choose(fields: Iterable[pa.Field], before: str) -> Iterator[pa.Field]:
        for field in fields:
            if pt.is_struct(field.type):
                inner = list(choose(field.type, f"{before}{field.name}."))
                if inner:
                    yield pa.field(field.name, pa.struct(inner))
            elif (name := before + field.name) in types:
                yield pa.field(field.name, types[name])

    fields = list(choose(inferred, ""))
    missing = set(types) - set(flatten_schema(pa.schema(fields)).names)
    return [*fields, *(pa.field(name, types[name]) for name in types if name in missing)]


def _parse_json(block: bytes, schema: pa.Schema | None) -> pa.Table:
    if schema is not None:
        return _parse_as(block, schema)
    table = _parse_as(block, None)
    try:
        table.validate()
    except pa.ArrowInvalid:  # Arrow drops values of lists that begin with two nulls
        table = _parse_as(block, _with_typed_lists(table.schema))
    return _with_unsigned(table, block)


def _parse_as(block: bytes, schema: pa.Schema | None) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(block),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _with_unsigned(table: pa.Table, block: bytes) -> pa.Table:
    """Convert integers from 2^63 on to uint64; Arrow infers double for them and rounds them."""
    for index, field in enumerate(table.schema):
        unsigned = _unsigned_field(field, table.column(index).combine_chunks())
        if unsigned == field:
            continue
        try:
            parsed = _parse_as(block, pa.schema([unsigned]))
        except pa.ArrowInvalid:  # fractions or negative numbers are among them
            continue
        table = table.set_column(index, unsigned, parsed.column(0))
    return table


def _unsigned_field(field: pa.Field, values: pa.Array) -> pa.Field:
    if pt.is_struct(field.type):
        inner = [_unsigned_field(f, values.field(n)) for n, f in enumerate(field.type)]
        return field.with_type(pa.struct(inner))
    if pt.is_list(field.type):
        element = _unsigned_field(field.type.value_field, values.flatten())
        return field.with_type(pa.list_(element))
    if not pt.is_floating(field.type):
        return field
    largest = pc.max(values).as_py()
    return field.with_type(pa.uint64()) if largest and 2**63 <= largest <= 2**64 else field


def _parse_json_lines(
    block: bytes, schema: pa.Schema | None, first_line_number: int
) -> Iterator[tuple[pa.Table, int, str]]:
    """Yield tables, or a line and its problem; blocks are halved until the line is found."""
    try:
        yield _parse_json(block, schema), first_line_number, ""
        return
    except pa.ArrowInvalid as error:
        lines = block.splitlines(keepends=True)
        filled = [number for number, line in enumerate(lines) if line.strip()]
        if len(filled) < 2:
            line_number = first_line_number + filled[0]
            yield pa.table({}), line_number, first_line(error).replace(" in row 0", "")
            return
    half = filled[len(filled) // 2]
    yield from _parse_json_lines(b"".join(lines[:half]), schema, first_line_number)
    yield from _parse_json_lines(b"".join(lines[half:]), schema, first_line_number + half)
