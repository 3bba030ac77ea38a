"""Explains why lines of a text file have another number of values than the first."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from runner.data.files.file_list import DataFile
from runner.data.files.read_text import TextFormat, read_first_rows, read_text_chunks
from runner.data.files.text_blocks import new_name, unpack_command
from runner.errors import DataError

# Unusual ways of quoting, and the arguments by which Python's csv reads them
_QUOTINGS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("its values stand between single quotes", {"quotechar": "'"}),
    ("quotes within its values follow a backslash", {"escapechar": "\\"}),
    ("spaces stand before its quotes", {"skipinitialspace": True}),
)
_MOST_UNFIT = 0.05  # share of unfit lines that may remain unfit with another way of quoting


def check_lines_fit(file: DataFile, layout: TextFormat | None) -> None:
    """Check that a file without rows has no lines that do not fit its header.

    Raises:
        DataError: naming the first such line.
    """
    chunk = next(read_text_chunks(file, {}, layout, skip_bad_rows=True), None) if layout else None
    if layout is None or chunk is None or not chunk.malformed_lines:
        return
    line, problem = chunk.malformed_lines[0]
    advice = describe_quoting(file, layout)
    counts = re.fullmatch(r"(\d+) values, not (\d+)", problem)
    is_same = {line_problem for _, line_problem in chunk.malformed_lines} == {problem}
    if not advice and counts and is_same and int(counts[1]) == int(counts[2]) + 1:
        advice = _describe_one_more(file, layout)
    raise DataError(f"{file}: no line fits its first line: line {line} has {problem}{advice}")


def describe_quoting(file: DataFile, layout: TextFormat) -> str:
    """Return how a file with unusual quotes is quoted, and a command that quotes it as usual.

    Empty if no way of quoting gives the lines as many values as the first line has.
    """
    if layout.json_lines or layout.delimiter == " ":
        return ""
    text = read_first_rows(file)
    rows = _read_rows(text, layout, {})
    num_unfit = len(rows) - _count_fitting(rows)
    for parts in (p for size in range(1, 4) for p in combinations(_QUOTINGS, size)):
        options = {key: value for _, by_key in parts for key, value in by_key.items()}
        num_left = len(rows) - _count_fitting(_read_rows(text, layout, options))
        if num_left <= _MOST_UNFIT * num_unfit and num_unfit:
            cause = " and ".join(cause for cause, _ in parts)
            return f", since {cause}; {_requote(file, layout, options)} quotes them as usual"
    return ""


def _read_rows(text: str, layout: TextFormat, options: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a text; none if Python's csv cannot read it."""
    lines = io.StringIO(text, newline="")
    try:
        return list(filter(None, csv.reader(lines, delimiter=layout.delimiter, **options)))
    except csv.Error:
        return []


def _count_fitting(rows: Sequence[Sequence[str]]) -> int:
    """Return how many rows have as many values as the first."""
    return sum(len(row) == len(rows[0]) for row in rows)


def _requote(file: DataFile, layout: TextFormat, options: Mapping[str, Any]) -> str:
    """Return a command that reads a file so and writes it with usual quotes, without a loss."""
    mark = {} if layout.delimiter == "," else {"delimiter": layout.delimiter}

    def write(settings: Mapping[str, Any]) -> str:
        values = {k: str(v) if v is True else json.dumps(v) for k, v in settings.items()}
        return "".join(f", {k}={v}" for k, v in values.items()).replace("'", "\\x27")

    code = (
        f"import csv, sys; csv.writer(sys.stdout{write({**mark, 'lineterminator': chr(10)})})"
        f".writerows(csv.reader(sys.stdin{write({**mark, **options})}))"
    )
    return f"{unpack_command(file)} | python3 -c '{code}' > {new_name(file, 'table.csv')}"


def _describe_one_more(file: DataFile, layout: TextFormat) -> str:
    """Return a remedy for a file in which each line has one value more than the first."""
    text, mark = read_first_rows(file), layout.delimiter.replace("\t", "\\t")
    if text.splitlines()[1].rstrip("\r").endswith(layout.delimiter):
        script, does = f"2,$s/[{mark}]\\r\\?$//", "takes the delimiter from the end of the lines"
    elif _has_row_names(text, layout):
        script, does = f"1s/^/row{mark}/", "gives a name to the first column, as R has not done"
    else:
        return "; values in which the delimiter stands need quotes, or the first line lacks a name"
    fixed_file = new_name(file, "table.csv")
    return f"; {unpack_command(file)} | sed '{script}' > {fixed_file} {does}"


def _has_row_names(text: str, layout: TextFormat) -> bool:
    """Tell whether lines begin with row names of R, which are distinct.

    A value with unusual quotes may as well be two values.
    """
    firsts = [row[0] for row in _read_rows(text, layout, {})[1:]]
    rest = re.sub(r'"[^"]*"', "", text)
    is_odd = '"' in rest or '\\"' in text or re.search(rf"[{re.escape(layout.delimiter)}] *'", rest)
    return not is_odd and len(set(firsts)) == len(firsts)
