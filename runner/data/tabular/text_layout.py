"""Finds out how a text file is written: its delimiter, and whether its first line has names."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace

from runner.data.tabular.file_list import DataFile
from runner.data.tabular.read_text import TextFormat, default_text_format, read_first_lines
from runner.errors import UserError

DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", "\x01": "\\x01"}
NUM_LINES = 50


def find_layout(
    file: DataFile, format_: str, delimiter: str | None, names: Sequence[str]
) -> tuple[TextFormat, list[str]]:
    """Return how a file is written, and what of that its user should know.

    Args:
        delimiter: what a user says; None: to be found out.
        names: the names of the columns that a user gives, for a file whose first line has none.

    Raises:
        UserError: for a delimiter of several characters, and for names that do not fit.
    """
    usual = default_text_format(format_)
    if usual.json_lines:
        return usual, []
    lines = read_first_lines(file, NUM_LINES)
    notes = []
    if delimiter is None:
        delimiter = _find_delimiter(file, lines, usual.delimiter)
        if delimiter != usual.delimiter:
            notes.append(f"its columns stand between {DELIMITERS[delimiter]}")
    elif len(delimiter := delimiter.encode().decode("unicode_escape")) != 1:
        raise UserError(f"--delimiter {delimiter!r}: expected one character; {_convert(delimiter)}")
    layout = replace(usual, delimiter=delimiter)
    rows = list(csv.reader(lines[:1], delimiter=delimiter))
    first = rows[0] if rows else []
    if names:
        if list(names) == first:
            raise UserError(f"--columns: the first line of {file} has these names already")
        if len(names) != len(first):
            raise UserError(f"--columns: {len(names)} names, but {file} has {len(first)} columns")
        return replace(layout, column_names=tuple(names)), notes
    if first and not _are_names(first):
        names = tuple(f"c{n}" for n in range(len(first)))
        notes.append(
            "its first line is a row, not names: the columns are called "
            f"{names[0]} to {names[-1]}; --columns a,b,c gives them names"
        )
        return replace(layout, column_names=names), notes
    return layout, notes


def _find_delimiter(file: DataFile, lines: Sequence[str], usual: str) -> str:
    """Return the character that stands equally often in every line.

    Raises:
        UserError: if there is none but `::`.
    """
    plain = [re.sub(r'"[^"]*"', "", line) for line in lines]
    counts = {d: [line.count(d) for line in plain] for d in (usual, *DELIMITERS)}
    steady = {d: c[0] for d, c in counts.items() if c and min(c) == max(c) > 0}
    if usual in steady or not steady:
        if plain and all("::" in line for line in plain):
            raise UserError(f"{file}: its columns stand between '::'; {_convert('::')}")
        return usual
    return max(steady, key=lambda d: steady[d])


def _convert(delimiter: str) -> str:
    return f"sed 's/{delimiter}/\\t/g' FILE > FILE.tsv makes tabs of them"


def _are_names(cells: Sequence[str]) -> bool:
    """Tell whether the first line has names: no number is one, but for 0, 1, 2 and so on."""
    if list(cells) == [str(n) for n in range(len(cells))]:
        return True
    return not any(re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", c) for c in cells)
