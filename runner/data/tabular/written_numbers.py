"""How numbers are written in text files: with leading zeros, or with a point."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.tabular.file_list import DataFile
from runner.data.tabular.partitions import columns_in_file
from runner.data.tabular.read_files import single_array
from runner.data.tabular.read_text import (
    TextFormat,
    read_text_chunks,
)
from runner.data.tabular.text_values import MISSING_NUMBERS


def read_codes_as_texts(
    file: DataFile, layout: TextFormat, schema: pa.Schema
) -> tuple[pa.Schema, list[str]]:
    """Take whole numbers with leading zeros as texts, since they are codes: 0017 is not 17.

    So are hexadecimal ones, such as 0x1f, which Arrow guesses to be numbers.

    Args:
        file: of which the first block is looked at.
        layout: how it is written.
        schema: the types that were guessed.

    Returns:
        The types, and notes.
    """
    own = columns_in_file(schema, schema.names)
    whole = {name: pa.string() for name in own if pt.is_integer(schema.field(name).type)}
    if layout.json_lines or not whole:
        return schema, []
    chunk = next(read_text_chunks(file, whole, layout, skip_bad_rows=True), None)
    rows = chunk.table if chunk is not None else None
    notes = []
    for name in whole if rows is not None else ():
        texts = single_array(rows, name)
        if codes := texts.filter(pc.match_substring_regex(texts, r"^\s*0[\dxX]")):
            field = pa.field(name, pa.string())
            schema = schema.set(schema.get_field_index(name), field)
            notes.append(f"{name}: texts, since some have leading zeros, such as {codes[0]}")
    return schema, notes


def find_written_integers(file: DataFile, layout: TextFormat, names: Sequence[str]) -> set[str]:
    """Return the columns whose values are all whole numbers, such as 12 or 12.0.

    pandas writes the latter where another value of the column is missing.

    Args:
        file: of which the first block is looked at.
        layout: how it is written.
        names: of the columns.
    """
    types = dict.fromkeys(names, pa.string())
    chunk = next(read_text_chunks(file, types, layout, skip_bad_rows=True), None) if names else None
    if chunk is None or chunk.table is None:
        return set()
    whole = rf"^\s*-?\d+({re.escape(layout.decimal)}0*)?\s*$"
    found = set()
    for name in names:
        texts = single_array(chunk.table, name)
        texts = texts.filter(pc.invert(pc.is_in(texts, pa.array(MISSING_NUMBERS))))
        if pc.all(pc.match_substring_regex(texts, whole)).as_py():
            found.add(name)
    return found
