"""Finds the layout of a text file: its delimiter, and whether its first line is a header."""

from __future__ import annotations

import csv
import io
import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.schema_file import is_delimiter
from runner.data.columns.times import guess_time_form
from runner.data.files.file_list import DataFile
from runner.data.files.read_text import (
    TextFormat,
    check_width,
    default_text_format,
    read_first_rows,
)
from runner.data.files.text_blocks import MAX_LINE_BYTES, new_name, unpack_command
from runner.data.files.text_values import MISSING_NUMBERS
from runner.data.proposal.columns.sample_statistics import Sample
from runner.errors import DataError, UserError, shell_path

DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", "\x01": "\\x01"}
SPACE = {" ": "spaces"}  # occurs within values, too: a delimiter only if no other character is one
ESCAPES = {"\\t": "\t", "tab": "\t", "\\x01": "\x01"}  # as typed in a shell
NUM_LINES = 50
SHORT_BYTES = 1 << 16  # a file of this size may have a header only
LIBSVM_ROW = r"[+-]?[\d.]+( +qid:\S+)?( +\d+(:\d+)?:\S+)+\s*(#.*)?"  # with :\d+ of LibFFM
MAX_LINES_BEFORE = 20  # before a table, such as a title or comments


def with_rows(files: Sequence[DataFile], format_: str) -> list[DataFile]:
    """Return the files that have rows: a header alone does not show the types of a table."""
    least = 1 if format_ == "jsonl" else 2
    return [
        file
        for file in files
        if file.size() > SHORT_BYTES
        or (file.size() and len(read_first_rows(file).strip().splitlines()) >= least)
    ]


def find_layout(
    file: DataFile, format_: str, delimiter: str | None, names: Sequence[str]
) -> tuple[TextFormat, list[str]]:
    """Return the layout of a file, and notes on it for the user.

    Args:
        delimiter: given by the user; None: it is found here.
        names: the names of the columns that a user gives, for a file whose first line has none.

    Raises:
        UserError: for a delimiter of several characters, and for names that do not fit.
        DataError: for a line that is not a row.
    """
    default = default_text_format(format_)
    if default.json_lines:
        return default, []
    text = read_first_rows(file)
    notes = []
    if delimiter is None:
        delimiter = _find_delimiter(file, text, default.delimiter)
        if delimiter != default.delimiter:
            notes.append(f"its columns stand between {(DELIMITERS | SPACE)[delimiter]}")
    elif not is_delimiter(delimiter := ESCAPES.get(delimiter, delimiter)):
        raise UserError(f"--delimiter {delimiter!r}: expected one character; {_convert(delimiter)}")
    layout = replace(default, delimiter=delimiter)
    if value := _find_literal_quote(text, delimiter):
        layout = replace(layout, quote="")
        notes.append(
            f"quotes are a part of its values, such as {value}, and are read as they are; without "
            "`quote: ''` in the YAML one that is not closed would take the lines behind it"
        )
    rows = _split_rows(file, text, layout)
    first = rows[0] if rows else []
    if commas := _columns_of_fractions(rows, ","):
        if points := _columns_of_fractions(rows, "."):
            notes.append(
                f"{', '.join(commas)}: numbers with a decimal comma are texts here, since those of "
                rf"{', '.join(points)} have a point; sed -E 's/([0-9]),([0-9])/\1.\2/g' "
                f"{shell_path(file)} > {new_name(file, 'points.csv')} makes points of them"
            )
        else:
            notes.append(f"{', '.join(commas)}: numbers with a decimal comma")
            layout = replace(layout, decimal=",")
    if names:
        if list(names) == first:
            raise UserError(
                f"--columns: the first line of {file} has these names; leave --columns out"
            )
        if len(names) != len(first):
            raise UserError(f"--columns: {len(names)} names, but {file} has {len(first)} columns")
        return replace(layout, column_names=tuple(names)), notes
    if first and not _are_names(first, rows[1:]):
        names = tuple(f"c{n}" for n in range(len(first)))
        notes.append(
            "its first line is a row, not names: the columns are called "
            f"{names[0]} to {names[-1]}; --columns a,b,c gives them names, and those such as "
            "user_id, rating or timestamp tell their roles"
        )
        return replace(layout, column_names=names), notes
    return layout, notes


def _find_literal_quote(text: str, delimiter: str) -> str:
    """Return a value with a literal quote; empty if quotes may enclose values.

    Quotes are literal if every line has as many values as the first when they are read so: then
    they enclose no delimiter and no line break.
    """
    lines = [line.split(delimiter) for line in text.split("\n") if line.strip()]
    if {len(values) for values in lines} != {max(2, len(lines[0]) if lines else 0)}:
        return ""
    values = (value for line in lines for value in line if value.startswith('"'))
    return next((value for value in values if not re.search(r'."\s*$', value)), "")


def _split_rows(file: DataFile, text: str, layout: TextFormat) -> list[list[str]]:
    check_width(file, text.partition("\n")[0].encode(), layout)
    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        lines = io.StringIO(text, newline="")
        if layout.quote:
            reader = csv.reader(lines, delimiter=layout.delimiter)
        else:
            reader = csv.reader(lines, delimiter=layout.delimiter, quoting=csv.QUOTE_NONE)
        return list(itertools.islice(filter(None, reader), NUM_LINES))
    except csv.Error as error:
        raise DataError(f"{file}: {error}") from error


def check_same_width(files: Sequence[DataFile], layout: TextFormat) -> None:
    """Check that files without a header may be parts of one table.

    Raises:
        DataError: naming a file whose rows all have another number of columns than the first's.
    """
    width = len(layout.column_names)
    for file in files[1:] if width else ():
        rows = _split_rows(file, read_first_rows(file), layout)
        if rows and width not in map(len, rows):
            raise DataError(
                f"{file}: has {len(rows[0])} columns, and {files[0]} has {width}; of two tables, "
                "name one"
            )


def check_names_not_repeated(sample: Sample, files: Sequence[DataFile]) -> None:
    """Check that no row repeats the header, as in text files that were concatenated.

    Raises:
        DataError: with a command that leaves these lines out.
    """
    counts = []
    for name in filter(None, sample.table.column_names):
        values = sample.wrong_texts.get(name, sample.table[name])
        is_text = pt.is_string(values.type)
        is_name = pc.equal(pc.utf8_trim(values, "\ufeff "), name.strip()) if is_text else None
        counts.append(pc.sum(is_name).as_py() or 0 if is_text else 0)
    if len(counts) < 2 or not (count := min(counts)):
        return
    file = next((file for file in files if _repeats_first_line(file)), files[0])
    lines = "a line repeats" if count == 1 else f"{count} lines repeat"
    raise DataError(
        f"{file}: {lines} the names of the columns: {unpack_command(file)} | awk "
        "'NR == 1 {names = $0} NR == 1 || $0 != names' "
        f"> {new_name(file, 'table.csv')} leaves them out"
    )


def _repeats_first_line(file: DataFile) -> bool:
    first, *rows = read_first_rows(file).splitlines() or [""]
    return first in rows


def _find_delimiter(file: DataFile, text: str, default: str) -> str:
    """Return the character that occurs equally often in every row.

    Raises:
        UserError: if there is none but `::`.
        DataError: if only lines before the table lack it.
    """
    rows = [re.sub(r'"[^"]*"', "", line) for line in text.splitlines() if line.strip()]
    if rows and all(re.fullmatch(LIBSVM_ROW, row) for row in rows[:NUM_LINES]):
        raise UserError(f"{file}: has the rows of LibSVM: {_convert_libsvm(file, rows)}")
    first = next((row for row in rows if not row.startswith("%")), "")  # after comments
    if re.match(r"(?i)@relation\s", first):
        names = f"{unpack_command(file)} | awk 'tolower($1) == \"@attribute\" {{print $2}}'"
        data = f"{unpack_command(file)} | awk 'found; tolower($1) == \"@data\" {{found = 1}}'"
        raise UserError(
            f"{file}: has the lines of ARFF; ({names} | paste -sd, -; {data}) > "
            f"{new_name(file, 'table.csv')} makes a table of them"
        )
    steady = _steady_delimiters(rows[:NUM_LINES], default)
    for mark in steady:
        _check_padded_lines(file, rows[:NUM_LINES], mark)
    if not steady:
        # a value in quotes may have line breaks
        rows = [row for row in re.sub(r'"[^"]*"', "", text).splitlines() if row.strip()]
        steady = _steady_delimiters(rows[:NUM_LINES], default)
    if default == "," and steady.get("\t", 0) > steady.get(",", 0) > 0:
        return "\t"  # a text in each line may have a comma, but hardly ever a tab
    if default in steady or not steady:
        if rows and all("::" in row for row in rows[:NUM_LINES]):
            raise UserError(f"{file}: its columns stand between '::'; {_convert('::')}")
        if not steady:
            if " " in _steady_delimiters(rows[:NUM_LINES], " "):
                return " "
            _check_first_lines(file, rows, default)
            below = _steady_delimiters(rows[1:NUM_LINES], " ")
            if short := [d for d, count in below.items() if rows[0].count(d) == count - 1 > 0]:
                return short[0]  # no line will fit the first; the error for it names the cause
            _check_not_aligned(file, rows[:NUM_LINES])
        return default
    return max(steady, key=lambda d: steady[d])


def _check_not_aligned(file: DataFile, rows: Sequence[str]) -> None:
    """Check that columns are not aligned by varying numbers of spaces.

    Raises:
        UserError: with a command that replaces the spaces by tabs.
    """
    for gap in (r"\s+", r"\s{2,}"):  # values may have single spaces
        counts = {len(re.split(gap, row.strip())) for row in rows}
        if len(rows) > 2 and len(counts) == 1 and counts != {1}:
            raise UserError(
                f"{file}: its columns stand between several spaces; {unpack_command(file)} | sed "
                f"-E 's/^\\s+|\\s+$//g; s/{gap}/\\t/g' > {new_name(file, 'table.tsv')} makes tabs "
                "of them"
            )


def _convert_libsvm(file: DataFile, rows: Sequence[str]) -> str:
    """Return a command that converts rows of LibSVM to a table, and its result."""
    unpack, sed = unpack_command(file), "sed -E 's/ *#.*//; "
    keys = {tuple(re.findall(r"(\w+):\S+", row.partition("#")[0])) for row in rows[:NUM_LINES]}
    if len(keys) == 1 and not any(re.search(r"\d:\d+:", row) for row in rows[:NUM_LINES]):
        names = [key if key == "qid" else f"f{key}" for key in keys.pop()]
        heading = ",".join(["label", *names])
        return (
            f"(echo {heading}; {unpack} | {sed}s/ +[a-z0-9]+:/,/g') > "
            f"{new_name(file, 'rows.csv')} makes a column of each number"
        )
    query = ", one of the query" if any(key[:1] == ("qid",) for key in keys) else ""
    first = "s/ +qid:([^ ]+) +/\\t\\1\\t/'" if query else "s/ +/\\t/'"
    return (
        f"{unpack} | {sed}{first} > {new_name(file, 'rows.tsv')} makes a column of the label"
        f"{query}, and one of the list behind it, whose ids are pairs such as 3:1"
    )


def _steady_delimiters(rows: Sequence[str], default: str) -> dict[str, int]:
    """Return each character that occurs equally often in all rows, and its count in a row."""
    counts = {d: [row.count(d) for row in rows] for d in (default, *DELIMITERS)}
    return {d: c[0] for d, c in counts.items() if c and min(c) == max(c) > 0}


def _check_first_lines(file: DataFile, rows: Sequence[str], default: str) -> None:
    """Check that no title or comment is in front of the table.

    A line within the table that has another number of columns is a bad row, and not refused here.

    Raises:
        DataError: with a command that leaves these lines out.
    """
    for count in range(1, MAX_LINES_BEFORE + 1):
        table = rows[count : count + NUM_LINES]
        if len(table) > 2 and (steady := _steady_delimiters(table, default)):
            delimiter = max(steady, key=lambda d: steady[d])
            if any(delimiter in row.removeprefix("sep=" + delimiter) for row in rows[:count]):
                return  # `sep=;` is a line that Excel writes
            shape = re.sub(r"\d+", "0", rows[0])
            if any(re.sub(r"\d+", "0", row) == shape for row in rows[count:]):
                raise DataError(
                    f"{file}: lines such as {rows[0]!r} are headings of the lines below them: awk "
                    f'-F{shlex.quote(delimiter)} \'NF == 1 {{h = $1; sub(/:$/, "", h); next}} '
                    f"{{print h FS $0}}' {shell_path(file)} > "
                    f"{new_name(file, 'table.csv')} makes a column of them"
                )
            _refuse_first_lines(file, rows, count, delimiter)


def _check_padded_lines(file: DataFile, rows: Sequence[str], delimiter: str) -> None:
    """Check that no title padded with empty cells is in front of the table, as in `Sales 2024;;`.

    Spreadsheets give each line as many cells as the table has columns.

    Raises:
        DataError: with a command that leaves these lines out.
    """
    cells = [[cell.strip() for cell in row.split(delimiter)] for row in rows]
    filled = [sum(map(bool, row)) for row in cells]
    count = next((n for n, number in enumerate(filled) if number > 1), 0)
    if not 0 < count <= MAX_LINES_BEFORE or len(cells[0]) < 3 or 2 * filled[count] <= len(cells[0]):
        return
    if not any(map(_is_number, cells[count])):
        _refuse_first_lines(file, rows, count, delimiter)


def _refuse_first_lines(
    file: DataFile, rows: Sequence[str], count: int, delimiter: str
) -> NoReturn:
    """Raise the error of lines before a table.

    Raises:
        DataError: with a command that leaves these lines out.
    """
    first = "line is" if count == 1 else f"{count} lines are"
    shown = re.sub(rf"{re.escape(delimiter)}{{2,}}$", "", rows[0])[:40]
    raise DataError(
        f"{file}: its first {first} no part of the table ({shown!r}), whose lines have "
        f"{rows[count].count(delimiter) + 1} columns between {DELIMITERS[delimiter]}: "
        f"tail -n +{count + 1} {shell_path(file)} > {new_name(file, 'table.csv')} leaves "
        "them out"
    )


def _columns_of_fractions(rows: Sequence[Sequence[str]], decimal: str) -> list[str]:
    """Return the names of columns in which every value is a number, and some have a fraction.

    Numbers such as 1,250 may be thousands, so that a column of these alone does not count; 0,250
    cannot be.
    """
    complete = [row for row in rows[1:] if len(row) == len(rows[0])]
    fractions = []
    for column, name in enumerate(rows[0] if len(complete) > 1 else ()):
        stripped = (row[column].strip() for row in complete)
        cells = [cell for cell in stripped if cell not in MISSING_NUMBERS]
        if all(re.fullmatch(rf"[+-]?\d*[{decimal}]?\d+", cell) for cell in cells) and any(
            re.search(rf"[{decimal}](\d{{1,2}}|\d{{4,}})$|^[+-]?0*[{decimal}]", cell)
            for cell in cells
        ):
            fractions.append(name)
    return fractions


def _convert(delimiter: str) -> str:
    return f"sed 's/{delimiter}/\\t/g' FILE > FILE.tsv makes tabs of them"


def _are_names(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first line is a header.

    It is if it has a text above a column of numbers, or is 0, 1, 2 and so on, or has no number,
    unless columns repeat their first value, or are times or hashes from the first line on.
    """
    if list(first) == [str(n) for n in range(len(first))]:
        return True
    complete = [row for row in rows if len(row) == len(first)]
    columns = [
        (cell, [row[n] for row in complete if row[n].strip() not in MISSING_NUMBERS])
        for n, cell in enumerate(first)
    ]
    for cell, below in columns:
        is_text = cell.strip() not in MISSING_NUMBERS and not _is_number(cell)
        if is_text and len(below) > 1 and all(map(_is_number, below)):
            return True
    if any(map(_is_number, first)):
        return False
    like_below = [
        cell in below
        or guess_time_form(pa.array([cell, *below])) != ""
        or all(map(_is_hash, (cell, *below)))
        for cell, below in columns
        if below
    ]
    return list(first) in rows or sum(like_below) < min(2, len(first) / 2)


def _is_hash(cell: str) -> bool:
    return re.fullmatch(r"(?=\D*\d)[0-9a-fA-F-]{16,}", cell) is not None


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", cell) is not None
