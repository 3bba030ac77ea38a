"""Vectors: columns with a list of numbers in each row, whose elements are dense features.

Shape legend: R rows of a chunk, S numbers of a vector, V values of all lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.columns.amounts import Amounts, parse_amounts
from runner.data.columns.column_specs import NumericSpec
from runner.data.files.bad_rows import RowValidator
from runner.data.files.read_files import as_texts, is_text, single_array
from runner.data.files.text_values import NUMBER_PATTERN, split_texts, strip_number


def expand_vectors(specs: Iterable[NumericSpec]) -> tuple[NumericSpec, ...]:
    """Return a feature for each element of a vector, `name[0]` to `name[S - 1]`."""
    expanded: list[NumericSpec] = []
    for spec in specs:
        elements = [replace(spec, name=f"{spec.name}[{i}]", element=i) for i in range(spec.size)]
        expanded += elements or [spec]
    return tuple(expanded)


def split_vectors(column: pa.Array, separator: str) -> pa.Array:
    """Return lists of numbers, or of texts that may be numbers.

    Args:
        column: lists, or texts.
        separator: between the numbers of a text; empty or `json`: it is a JSON list.
    """
    if not is_text(column.type):
        return column
    texts = as_texts(column)
    if separator != " ":
        return split_texts(texts, separator or "json")
    # as NumPy prints them: in brackets, on several lines, with any number of spaces in between
    texts = pc.replace_substring_regex(pc.utf8_trim(texts, " []\r\n"), r"\s+", " ")
    return split_texts(texts, " ")


def read_vectors(
    table: pa.Table, spec: NumericSpec, validator: RowValidator
) -> tuple[np.ndarray, np.ndarray]:
    """Read a column of vectors. All numbers of a missing or an empty vector are missing.

    NaN is a missing number.

    Args:
        spec: of any element.
        validator: rejects vectors of another length, and texts that are no numbers.

    Returns:
        [R, S] float64, 0 where a number is missing, and [R, S] bool: which are missing.

    Raises:
        DataError: for the first bad row, unless bad rows are skipped.
    """
    lists = split_vectors(single_array(table, spec.column), spec.separator)
    length_R = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    validator.reject(
        spec.column,
        (length_R != spec.size) & (length_R != 0),
        lambda row: f"a vector of {length_R[row]} numbers: expected {spec.size}",
    )
    flat = lists.flatten()
    if is_text(flat.type):
        flat = parse_numbers(flat, spec.column, validator, np.repeat(range(len(lists)), length_R))
    numbers_V = flat.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    missing_V = np.isnan(numbers_V)
    numbers_V = np.where(missing_V, 0.0, numbers_V)
    is_whole_R = length_R == spec.size
    if is_whole_R.all():
        shape = (len(lists), spec.size)
        return numbers_V.reshape(shape), missing_V.reshape(shape)
    numbers_RS = np.zeros((len(lists), spec.size))
    missing_RS = np.ones((len(lists), spec.size), bool)
    is_of_whole_V = np.repeat(is_whole_R, length_R)
    numbers_RS[is_whole_R] = numbers_V[is_of_whole_V].reshape(-1, spec.size)
    missing_RS[is_whole_R] = missing_V[is_of_whole_V].reshape(-1, spec.size)
    return numbers_RS, missing_RS


def parse_numbers(
    texts_V: pa.Array,
    name: str,
    validator: RowValidator,
    row_of_value: np.ndarray | None,
    amounts: Amounts | None = None,
) -> pa.Array:
    """Return texts as numbers; other texts become missing, and their rows bad.

    Args:
        row_of_value: [V] the row of every value of a list column.
        amounts: how texts are converted, if they are amounts.

    Raises:
        DataError: for the first bad row, unless bad rows are skipped.
    """
    if amounts:
        amounts_V = parse_amounts(texts_V, amounts)
        is_known = pc.or_(amounts_V.is_valid(), amounts.is_missing(texts_V))
        wrong_V = ~pc.or_(is_known, texts_V.is_null()).to_numpy(zero_copy_only=False)
        rule = f"is not a number in the form {amounts}"
        validator.reject(name, wrong_V, lambda at: f"{texts_V[at].as_py()!r} {rule}", row_of_value)
        return amounts_V
    is_number = pc.match_substring_regex(texts_V, NUMBER_PATTERN)
    wrong_V = ~is_number.fill_null(True).to_numpy(zero_copy_only=False)
    validator.reject(
        name, wrong_V, lambda at: f"{texts_V[at].as_py()!r} is not a number", row_of_value
    )
    numbers = pc.if_else(is_number, texts_V, pa.scalar(None, pa.string()))
    return strip_number(numbers).cast(pa.float64())
