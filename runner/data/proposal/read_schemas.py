"""Reads the format and the columns of a table's files, before a schema is proposed.

In text files it also sees how numbers are written: with leading zeros, or with a point.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.files.arrow_files import ARROW_FORMATS, leave_out_empty, read_arrow_schema
from runner.data.files.file_columns import check_same_schema, promote_types
from runner.data.files.file_list import SUFFIXES, DataFile, find_files, is_rather_note, names_in
from runner.data.files.partitions import columns_in_file, is_partition, with_partitions
from runner.data.files.read_files import read_parquet_schema, single_array
from runner.data.files.read_text import (
    TextFormat,
    infer_text_schema,
    read_text_chunks,
    unify_guesses,
)
from runner.data.files.remote_files import find_remote
from runner.data.files.text_blocks import find_binary_format
from runner.data.files.text_values import MISSING_NUMBERS
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.text_layout import check_same_width, find_layout
from runner.data.tabular.table_settings import TEXT_FORMATS
from runner.errors import UserError

EXCEL = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


def detect_format(path: str) -> str:
    """Return the format of files, by the ending of the path or of its first file.

    Parquet, Arrow, ORC and Avro are also recognised by their first bytes. Another file without a
    known ending is taken as CSV, and refused later if it is not text. In a folder, text and JSON
    files decide only if there are no others, since they are often notes on the data.

    Raises:
        UserError: for an ending that is not known.
        DataError: for a path that does not exist.
    """
    lower = path.rstrip("/").lower()
    if lower.endswith(EXCEL):
        raise UserError(f"{path}: is an Excel file: save the sheet as CSV, or as Parquet by pandas")
    if binary := find_binary_format(path):
        return binary
    for format_, suffixes in SUFFIXES.items():
        if lower.endswith(suffixes):
            return format_
    endings = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    if os.path.isfile(path):
        return "csv"
    if "://" in path:
        names = find_remote(path, endings, "")[1]
    elif os.path.isdir(path):
        names = [os.path.basename(name) for name in names_in(path)]
    else:  # raises an error with the nearest name if there is no such path
        return detect_format(find_files(path, "csv", key="")[0].path)
    if known := sorted(name for name in names if name.lower().endswith(endings)):
        return detect_format(min(known, key=is_rather_note))
    if os.path.isdir(path):
        raise UserError(
            f"{path}: no file has an ending that says its format (there are: "
            f"{', '.join(names[:5]) or 'no files'}): name one of them, or "
            f"{shlex.quote(path.rstrip('/') + '/*')} for all, which are texts such as CSV unless "
            "their first bytes say otherwise"
        )
    listed = ", ".join(e for e in dict.fromkeys(endings) if not e.endswith((".gz", ".bz2", ".zst")))
    raise UserError(
        f"{path}: is it Parquet, CSV, TSV, JSON lines, Arrow, ORC or Avro? Known endings are "
        f"{listed}, and of texts these with .gz, .bz2 or .zst"
    )


def read_schemas(
    files_by_key: Mapping[str, Sequence[DataFile]], format_: str, hints: Hints
) -> tuple[pa.Schema, TextFormat | None, dict[str, int] | None, list[str]]:
    """Return the columns, the layout of text files, the rows of each file if known, and notes.

    Raises:
        UserError: for hints that the files contradict, and files that differ.
    """
    files = [file for paths in files_by_key.values() for file in paths]
    notes: list[str] = []
    if format_ not in TEXT_FORMATS and (hints.delimiter or hints.columns):
        name = "Parquet" if format_ == "parquet" else format_
        raise UserError(f"--delimiter, --columns: are for text files; {name} names its columns")
    if format_ == "parquet":
        facts = {str(file): read_parquet_schema(file) for file in files}
        with_rows = {name: s for name, (s, counts) in facts.items() if sum(counts)}
        files = [file for file in files if str(file) in with_rows] or files
        schemas = with_rows or {name: s for name, (s, _) in facts.items()}
        first = _first_schema(schemas, files, notes)
        return first, None, {name: sum(counts) for name, (_, counts) in facts.items()}, notes
    if format_ in ARROW_FORMATS:
        schemas = {str(file): read_arrow_schema(file, format_) for file in files}
        schemas = leave_out_empty(schemas, files, format_) or schemas
        return _first_schema(schemas, files, notes), None, None, notes
    layout, notes = find_layout(files[0], format_, hints.delimiter, hints.columns)
    check_same_width(files, layout)
    schemas = unify_guesses({str(file): infer_text_schema(file, layout) for file in files})
    guessed = _first_schema(schemas, files, notes, are_guesses=True)
    schema, more = read_codes_as_texts(files[0], layout, guessed)
    return schema, layout, None, notes + more


def _first_schema(
    schemas: Mapping[str, pa.Schema],
    files: Sequence[DataFile],
    notes: list[str],
    *,
    are_guesses: bool = False,
) -> pa.Schema:
    """Return the columns of the first file and its folders, by which all files are read.

    Types guessed from texts may differ between files; `notes` gets a line on dropped columns.

    Raises:
        DataError: for files that differ.
    """
    schemas = with_partitions(schemas if are_guesses else promote_types(schemas), files)
    first = next(iter(schemas.values()))
    unnamed = len(first.get_all_field_indices(""))
    if unnamed > 1:  # of a single one it is known later whether it holds anything
        notes.append(
            f"the {unnamed} columns without a name are left out; names in the first line make "
            "use of them"
        )
        schemas = {path: pa.schema([f for f in s if f.name]) for path, s in schemas.items()}
        first = next(iter(schemas.values()))
    of_folders = [n for s in schemas.values() for n in s.names if is_partition(s, n)]
    if are_guesses:
        schemas = {
            path: pa.schema([field.with_type(pa.string()) for field in schema])
            for path, schema in schemas.items()
        }
    check_same_schema(schemas, list(dict.fromkeys([*first.names, *of_folders])))
    return first


def read_codes_as_texts(
    file: DataFile, layout: TextFormat, schema: pa.Schema
) -> tuple[pa.Schema, list[str]]:
    """Take whole numbers with leading zeros as texts, since they are codes: 0017 is not 17.

    So are hexadecimal ones, such as 0x1f, which Arrow guesses to be numbers.

    Args:
        file: its first block is read.
        schema: the types that were guessed.

    Returns:
        The types, and notes.
    """
    names = columns_in_file(schema, schema.names)
    as_texts = {name: pa.string() for name in names if pt.is_integer(schema.field(name).type)}
    if layout.json_lines or not as_texts:
        return schema, []
    chunk = next(read_text_chunks(file, as_texts, layout, skip_bad_rows=True), None)
    rows = chunk.table if chunk is not None else None
    notes = []
    for name in as_texts if rows is not None else ():
        texts = single_array(rows, name)
        if codes := texts.filter(pc.match_substring_regex(texts, r"^\s*0[\dxX]")):
            field = pa.field(name, pa.string())
            schema = schema.set(schema.get_field_index(name), field)
            notes.append(f"{name}: texts, since some have leading zeros, such as {codes[0]}")
    return schema, notes


def find_written_integers(
    file: DataFile, layout: TextFormat, doubles: Sequence[str], integers: Sequence[str]
) -> set[str]:
    """Return the columns of whole numbers that would be different ids if read as texts.

    pandas writes 12.0 if another value of the column is missing, databases write NULL for a
    missing value, and columns of a fixed width have spaces in front.

    Args:
        file: its first block is read.
        doubles: columns that may hold such numbers.
        integers: columns that hold no point.
    """
    names = [*doubles, *integers]
    types = dict.fromkeys(names, pa.string())
    chunk = next(read_text_chunks(file, types, layout, skip_bad_rows=True), None) if names else None
    if chunk is None or chunk.table is None:
        return set()
    pattern = rf"^\s*-?\d+({re.escape(layout.decimal)}0*)?\s*$"
    written = set()
    for name in names:
        texts = single_array(chunk.table, name)
        if name in integers and pc.all(pc.match_substring_regex(texts, r"^-?\d+$|^$")).as_py():
            continue
        texts = texts.filter(pc.invert(pc.is_in(texts, pa.array(MISSING_NUMBERS))))
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            written.add(name)
    return written
