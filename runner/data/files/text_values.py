"""Converts texts of a text file to numbers, times and booleans."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

WORDS = "words"  # separator of a list of ids: splits a text into words
NUMBER_PATTERN = (
    r"^\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|[nN][aA][nN]|[iI][nN][fF])\s*$"
)
# Texts that programs write for a missing number: pandas, R, SAS, Hive, databases, Excel's errors
_NO_NUMBERS = (
    *("NA", "N/A", "n/a", "na", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "NAN", "-nan"),
    *("-NaN", "1.#QNAN", "-1.#QNAN", "1.#IND", "-1.#IND", "NULL", "null", "Null", "None", "none"),
    *("\\N", "-", "--", ".", "?", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!"),
    *("(null)", "<null>", "nil", "NaT", "n.a.", "N.A.", "undefined", "missing", "Missing"),
)
# empty, or with spaces alone or in front, as in columns of a fixed width
MISSING_NUMBERS = (
    *(" " * width for width in range(21)),
    *(" " * width + text for text in _NO_NUMBERS for width in range(12)),
)
SHORT_INTEGER_PATTERN, LONG_INTEGER_PATTERN = r"^\s*[+-]?\d{1,18}\s*$", r"^\s*[+-]?\d{19}\s*$"

JSON_VALUES = (str, int, float, type(None))
_QUOTED = r"""(?:'[^']*'|"[^"]*"|None)"""  # a value of an array, as NumPy writes texts
# in a list: an escape, a value without quotes next to one with quotes, and a missing one
_NEEDS_PARSER = r"""\\|["']\s*,\s*[^"'\s]|[^"'\s]\s*,\s*["']|(^|,)\s*(null|None)\s*(,|$)"""

# of a list that Postgres or a Python set has written: {a,"b c",NULL} or {'a', 'b'}, not {"a": 1}
_IN_BRACES = r"""("(\\.|[^"\\])*"|'[^']*'|([^"'{},:\\\n\r]|:[^ "'\\])*)"""
BRACES_PATTERN = rf"^\s*(set\(\)|\{{{_IN_BRACES}(,\s*{_IN_BRACES})*\}})\s*$"


def cast_texts(
    table: pa.Table, types: Mapping[str, pa.DataType], decimal: str
) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Cast texts to their types. A text that does not fit becomes missing and is returned.

    Args:
        decimal: the character before the fraction of a number, a point or a comma.
    """
    invalid: dict[str, pa.Array] = {}
    missing = pa.scalar(None, pa.string())
    for index, (name, type_) in enumerate(types.items()):
        if pt.is_string(type_):
            continue
        texts = table[name].combine_chunks()
        is_number = pt.is_integer(type_) or pt.is_floating(type_)
        if is_number:
            texts = pc.if_else(pc.is_in(texts, pa.array(MISSING_NUMBERS)), missing, texts)
        if pt.is_integer(type_):
            fits = match_integers(texts)
        elif pt.is_floating(type_):
            fits = pc.match_substring_regex(texts, NUMBER_PATTERN.replace(r"\.", rf"\{decimal}"))
        else:
            fits = _match_type(texts, type_)
        if pc.any(pc.invert(fits)).as_py():
            invalid[name] = pc.if_else(pc.fill_null(fits, True), missing, texts)
            texts = pc.if_else(fits, texts, missing)
        if pt.is_floating(type_) and decimal != ".":
            texts = pc.replace_substring(texts, decimal, ".")
        texts = strip_number(texts) if is_number else texts
        table = table.set_column(index, name, texts.cast(type_))
    return table, invalid


def with_points(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Return texts of several numbers with decimal points instead of decimal commas."""
    for index, name in enumerate(table.column_names):
        if name in names and pt.is_string(table[name].type) | pt.is_large_string(table[name].type):
            table = table.set_column(index, name, pc.replace_substring(table[name], ",", "."))
    return table


def _match_type(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return which texts Arrow can cast to a time or a boolean; a missing one stays missing."""
    encoded = texts.dictionary_encode()
    fits = []
    for text in encoded.dictionary:
        try:
            text.cast(type_)
            fits.append(True)
        except pa.ArrowInvalid:
            fits.append(False)
    return pa.array(fits, pa.bool_()).take(encoded.indices)


def match_integers(texts: pa.Array) -> pa.Array:
    """Return which texts are whole numbers of 64 bits; a missing one stays missing."""
    fits = pc.match_substring_regex(texts, SHORT_INTEGER_PATTERN)
    if pc.all(fits).as_py() is not False:
        return fits
    long = pc.match_substring_regex(texts, LONG_INTEGER_PATTERN)
    digits = pc.utf8_ltrim(strip_number(texts), "-")
    largest = pc.if_else(pc.starts_with(strip_number(texts), "-"), str(2**63), str(2**63 - 1))
    return pc.or_(fits, pc.and_(long, pc.less_equal(digits, largest)))


def match_unsigned(texts: pa.Array) -> pa.Array:
    """Return which texts are whole numbers from 2^63 to 2^64 - 1; a missing one stays missing."""
    digits = strip_number(texts)
    is_long = pc.match_substring_regex(digits, r"^(\d{19}|1\d{19})$")
    length = pc.binary_length(digits)
    above = pc.or_(pc.equal(length, 20), pc.greater_equal(digits, str(2**63)))
    below = pc.or_(pc.equal(length, 19), pc.less_equal(digits, str(2**64 - 1)))
    return pc.and_(is_long, pc.and_(above, below))


def split_json_lists(texts: pa.Array) -> pa.Array:
    """Split texts such as `["a", "b"]` or `[1, 2]`, and lists as NumPy and Postgres print them.

    The latter are `[np.int64(1)]`, `[1 2]` and `['a' 'b']`, and `{a,"b c",NULL}`.

    A missing or an empty list has no value, and a `null` in a list is a missing value.
    """
    texts = _without_braces(texts)
    inner = pc.replace_substring_regex(texts, r"^\s*\[\s*|\s*\]\s*$", "")
    inner = pc.replace_substring_regex(inner, r"np\.\w+\(([^()]*)\)", r"\1")
    is_array = pc.match_substring_regex(inner, r"^-?\d+(\s+-?\d+)+$")
    inner = pc.if_else(is_array, pc.replace_substring_regex(inner, r"\s+", ","), inner)
    is_array = pc.match_substring_regex(inner, rf"^{_QUOTED}(\s+{_QUOTED})+$")
    with_commas = pc.replace_substring_regex(inner, rf"({_QUOTED})\s+", r"\1,")
    inner = pc.if_else(is_array, with_commas, inner)
    quoted = pc.match_substring_regex(inner, "^[\"']")
    between_quotes = pc.replace_substring_regex(inner, "[\"']\\s*,\\s*[\"']", "\x1f")
    between_values = pc.replace_substring_regex(inner, r"\s*,\s*", "\x1f")
    joined = pc.if_else(quoted, between_quotes, between_values)
    parts = pc.split_pattern(pc.replace_substring_regex(joined, "^[\"']|[\"']$", ""), "\x1f")
    return _parse_unusual_lists(inner, _without_value(inner, parts))


def _without_braces(texts: pa.Array) -> pa.Array:
    """Return arrays of Postgres as JSON lists; other texts stay."""
    in_braces = pc.match_substring_regex(texts, BRACES_PATTERN)
    if not pc.any(in_braces).as_py():
        return texts
    lists = pc.replace_substring_regex(texts, r"^\s*(\{|set\(\))|\}\s*$", "")
    unusual = pc.and_(in_braces, pc.match_substring_regex(lists, r'"|(^|,)\s*NULL\s*(,|$)'))
    unusual = pc.fill_null(unusual, False)
    rows = csv.reader(lists.filter(unusual).to_pylist(), escapechar="\\", doublequote=False)
    parsed = [json.dumps([None if v == "NULL" else v for v in row]) for row in rows]
    lists = pc.replace_with_mask(lists, unusual, pa.array(parsed, lists.type))
    return pc.if_else(in_braces, lists, texts)


def _parse_unusual_lists(inner: pa.Array, parts: pa.Array) -> pa.Array:
    """Parse the lists whose values cannot be found by commas and quotes alone.

    Args:
        inner: the text between the brackets.
        parts: its values, split by commas and quotes, which stay if the list cannot be parsed.
    """
    unusual = pc.fill_null(pc.match_substring_regex(inner, _NEEDS_PARSER), False)
    if not pc.any(unusual).as_py():
        return parts
    values = parts.to_pylist()
    for row in np.flatnonzero(unusual.to_numpy(zero_copy_only=False)):
        for parse in (json.loads, ast.literal_eval):  # as in JSON, and as Python prints lists
            try:
                parsed = parse(f"[{inner[row].as_py()}]")
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if all(type(value) in JSON_VALUES for value in parsed):
                values[row] = [value if value is None else str(value) for value in parsed]
                break
    return pa.array(values, parts.type)


def split_texts(texts: pa.Array, separator: str) -> pa.Array:
    """Split texts at a separator; `json` does as `split_json_lists`, and `words` gives words.

    Words are in lower case and without punctuation. A missing and an empty text have no value.
    """
    if separator == "json":
        return split_json_lists(texts)
    if separator == WORDS:
        marks = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{N}]+", " ")
        texts, separator = pc.utf8_trim_whitespace(marks), " "
    return _without_value(texts, pc.split_pattern(texts, separator))


def _without_value(texts: pa.Array, parts: pa.Array) -> pa.Array:
    """Return the parts of texts, with an empty list for a missing or an empty text."""
    empty = pc.fill_null(pc.equal(texts, ""), True)
    return pc.if_else(empty, pa.scalar([], parts.type), parts)


def parse_json_lists(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Parse texts as JSON lists of texts or numbers; a missing or an empty text is an empty list.

    Returns:
        The lists, of texts, and which texts are not such lists, bool [R].
    """
    lists: list[list[str | None]] = []
    wrong_R = np.zeros(len(texts), bool)
    for row, text in enumerate(texts.to_pylist()):
        try:
            values = (json.loads(text) if text else None) or []
        except ValueError:
            values = None
        if not isinstance(values, list) or not all(type(v) in JSON_VALUES for v in values):
            wrong_R[row], values = True, []
        lists.append([v if v is None else str(v) for v in values])
    return pa.array(lists, pa.list_(pa.string())), wrong_R


def strip_number(texts: pa.Array) -> pa.Array:
    """Remove what Arrow's parser of numbers refuses: surrounding spaces and a plus sign."""
    return pc.utf8_ltrim(pc.utf8_trim_whitespace(texts), "+")
