"""Values of id columns as integers, before they are mapped to rows of an embedding table.

Shape legend: R rows of a chunk, V values of a list column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.hash_text import hash_texts
from runner.data.columns.times import (
    END_S,
    TIME_PARTS,
    as_seconds,
    compute_time_part,
    describe_wrong_time,
    is_seconds,
    is_temporal,
    parse_times,
)
from runner.data.columns.vectors import parse_numbers, split_vectors
from runner.data.core.transforms import splitmix64
from runner.data.files.bad_rows import RowValidator
from runner.data.files.read_files import as_texts, is_text, single_array
from runner.data.files.text_values import (
    MISSING_NUMBERS,
    NUMBER_PATTERN,
    match_integers,
    match_unsigned,
    parse_json_lists,
    split_texts,
    strip_number,
)

MAX_EXACT_INTEGER = 2**53  # above it a double does not represent every integer
UNKNOWN_TYPES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RawIds:
    """Values of an id column: one per row, or with offsets a list per row."""

    values: np.ndarray  # int64 [R], or [V]
    missing: np.ndarray  # bool [R], or [V]
    offsets_R1: np.ndarray | None = None
    row_of_value: np.ndarray | None = None  # [V]
    weights: np.ndarray | None = None  # [V] float32


def read_ids(
    spec: IdSpec,
    table: pa.Table,
    validator: RowValidator,
    id_types: Mapping[str, str] = UNKNOWN_TYPES,
) -> RawIds:
    """Read an id column as integers; sequences are put in time order and cut to their length.

    Args:
        id_types: column -> `integer`, `unsigned` or `string`, its type in training; values of
            another type are converted, so that an id is the same whatever the format of its file.

    Raises:
        DataError: for a value that cannot be an id, unless bad rows are skipped.
    """
    if spec.cross:
        total = np.zeros(table.num_rows, np.uint64)
        for position, name in enumerate(spec.cross):
            column, id_type = single_array(table, name), id_types.get(name)
            column = _as_type(column, id_type, name, validator, None, booleans=True)
            values, missing = read_integers(column, name, validator, None)
            values[missing] = np.iinfo(np.int64).min  # a missing value gets a bucket like any other
            total = splitmix64(total ^ splitmix64(values.view(np.uint64), position), 0)
        return RawIds(total.view(np.int64), np.zeros(table.num_rows, bool))
    column = single_array(table, spec.column)
    if not spec.is_list:
        return RawIds(*_read_values(spec, column, validator, None, id_types))
    lists = as_lists(spec, spec.column, column, validator)
    flat, offsets_R1 = flatten_lists(lists)
    row_of_value: np.ndarray = np.repeat(np.arange(len(lists)), np.diff(offsets_R1))
    values, missing = _read_values(spec, flat, validator, row_of_value, id_types)
    weights: np.ndarray | None = None
    if spec.weights:
        raw = _read_parallel_list(table, spec.weights, spec, offsets_R1, validator)
        wrong = ~(np.isfinite(raw) & (np.abs(raw) <= np.finfo(np.float32).max))
        validator.reject(
            spec.weights, wrong, lambda at: f"weight {raw[at]}: not finite", row_of_value
        )
        weights = np.where(wrong, 0, raw).astype(np.float32)
    if spec.is_sequence:
        if spec.order_by:
            times = _read_parallel_list(table, spec.order_by, spec, offsets_R1, validator)
            order = np.lexsort((times, row_of_value))
            values, missing = values[order], missing[order]
        keep, offsets_R1 = _truncate_lists(offsets_R1, spec.max_length, spec.keep)
        return RawIds(values[keep], missing[keep], offsets_R1, row_of_value[keep])
    return RawIds(values, missing, offsets_R1, row_of_value, weights)


def read_integers(
    column: pa.Array, name: str, validator: RowValidator, row_of_value: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Read values as integers: texts become their 64-bit hash; fractions must be whole or NaN.

    Args:
        row_of_value: [V] the row of every value of a list column.

    Returns:
        The values, int64 with 0 where one is missing, and which are missing or NaN, bool.

    Raises:
        DataError: for a fraction that is not a whole number, unless bad rows are skipped.
    """
    if pt.is_decimal(column.type):  # by its digits, since a double cannot represent all of them
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:  # fractions, which are reported, or whole numbers from 2^63 on
            texts = pc.replace_substring_regex(column.cast(pa.string()), "^0E.*", "0")  # 0E-10
            column = _parse_integers(name, texts, validator, row_of_value)
    missing = find_missing(column)
    if is_text(column.type):
        return hash_texts(column), missing
    if pt.is_floating(column.type):
        values = fill_missing(column).to_numpy(zero_copy_only=False).astype(np.float64)
        missing = missing | np.isnan(values)
        values = np.where(missing, 0.0, values)
        is_whole_V = (values == np.rint(values)) & (np.abs(values) <= MAX_EXACT_INTEGER)

        def why(at: int) -> str:
            if not MAX_EXACT_INTEGER < abs(values[at]) < np.inf:
                return f"value {values[at]}: not an integer"
            return (
                f"value {values[at]}: the last digits of whole numbers above 2**53 are lost where "
                "the column is of doubles, as where one value is written 12.0 or 1e3: write all of "
                "them without a point, or as texts"
            )

        validator.reject(name, ~is_whole_V, why, row_of_value)
        return np.where(is_whole_V, values, 0).astype(np.int64), missing
    if not pt.is_integer(column.type):
        column = column.cast(pa.int64())  # booleans, and columns without any value
    return fill_missing(column).to_numpy(zero_copy_only=False).astype(np.int64), missing


def find_missing(column: pa.Array) -> np.ndarray:
    """Return which values are missing, as bool."""
    if not column.null_count:  # most columns; Arrow would check every value
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def fill_missing(column: pa.Array) -> pa.Array:
    """Return a column with 0 where a value is missing."""
    return column.fill_null(0) if column.null_count else column


def _read_values(
    spec: IdSpec,
    flat: pa.Array,
    validator: RowValidator,
    row_of_value: np.ndarray | None,
    id_types: Mapping[str, str],
) -> tuple[np.ndarray, np.ndarray]:
    """Read the values of an id column; those to be bucketised are float64, viewed as int64."""
    if spec.encode == "bucketise":
        if is_text(flat.type):
            flat = parse_numbers(as_texts(flat), spec.column, validator, row_of_value, spec.amounts)
        flat = as_seconds(flat) if is_seconds(flat.type) else flat
        numbers = flat.cast(pa.float64(), safe=False).fill_null(np.nan)
        values = numbers.to_numpy(zero_copy_only=False)
        missing = np.isnan(values)
        return np.where(missing, 0.0, values).view(np.int64), missing
    if spec.encode in TIME_PARTS:
        form = "seconds" if spec.input == "auto" else spec.input
        seconds = read_time_column(flat, spec.column, form, validator)
        return compute_time_part(seconds, spec.encode), np.isnan(seconds)
    if spec.input == "string" and not is_text(flat.type):
        flat = flat.cast(pa.string())
    elif spec.input != "string":
        is_number = spec.encode == "as_is" or spec.input == "integer"
        type_ = "integer" if is_number else None if spec.separator else id_types.get(spec.column)
        flat = _as_type(flat, type_, spec.column, validator, row_of_value, booleans=not is_number)
    return read_integers(flat, spec.column, validator, row_of_value)


def read_time_column(times: pa.Array, name: str, form: str, validator: RowValidator) -> np.ndarray:
    """Read a column of times as seconds since 1970: [R] float64, NaN where one is missing.

    Args:
        form: of TIME_FORMS, how its numbers or texts express times.

    Raises:
        DataError: for the first value that is not a time, unless bad rows are skipped.
    """
    missing = find_missing(times)
    if is_text(times.type):  # an empty text is missing, as it always is in CSV
        empty = pc.equal(as_texts(times), "").fill_null(False)
        missing |= empty.to_numpy(zero_copy_only=False)
    seconds = parse_times(times, form)
    if not is_temporal(times.type):
        seconds = np.where(np.abs(seconds) < END_S, seconds, np.nan)
    wrong = ~missing & np.isnan(seconds)
    if pt.is_floating(times.type):  # NaN is a missing value
        wrong &= ~np.isnan(fill_missing(times).to_numpy(zero_copy_only=False))
    validator.reject(name, wrong, lambda row: describe_wrong_time(times[row].as_py(), form))
    return seconds


def _as_type(
    values: pa.Array,
    type_: str | None,
    name: str,
    validator: RowValidator,
    row_of_value: np.ndarray | None,
    *,
    booleans: bool,
) -> pa.Array:
    """Return ids as integers, or as texts: those of integers are their decimal digits.

    Args:
        booleans: whether texts may be true and false, since training had integers or booleans.
    """
    if type_ in ("integer", "unsigned") and is_text(values.type):
        return _parse_integers(name, values, validator, row_of_value, booleans=booleans)
    if type_ != "string" or is_text(values.type):
        return values
    if pt.is_boolean(values.type):  # how the training's files wrote them is unknown
        wrong = values.is_valid().to_numpy(zero_copy_only=False)
        rule = "not a text, as in the training"
        validator.reject(name, wrong, lambda at: f"value {values[at]}: {rule}", row_of_value)
    if not pt.is_integer(values.type):
        integers, missing = read_integers(values, name, validator, row_of_value)
        values = pa.array(integers, mask=missing)
    return values.cast(pa.string())


def _parse_integers(
    name: str,
    texts: pa.Array,
    validator: RowValidator,
    row_of_value: np.ndarray | None,
    *,
    booleans: bool = False,
) -> pa.Array:
    """Parse integers of 64 bits, such as 12 and 12.0, which pandas writes if values are missing.

    Unsigned ones from 2^63 on wrap around, as those of Parquet do. Texts such as NULL are missing.

    Args:
        booleans: whether true and false, or t and f, in any case, are 1 and 0.
    """
    texts = pc.replace_substring_regex(as_texts(texts), r"(\d)\.0*\s*$", r"\1")
    no_text = pa.scalar(None, pa.string())
    texts = pc.if_else(pc.is_in(texts, pa.array(MISSING_NUMBERS)), no_text, texts)
    fits, fits_unsigned = match_integers(texts), match_unsigned(texts)
    wrong = ~pc.or_(fits, fits_unsigned).fill_null(True).to_numpy(zero_copy_only=False)
    if booleans and wrong.any():
        texts = pc.replace_substring_regex(texts, r"(?i)^\s*t(rue)?\s*$", "1")
        texts = pc.replace_substring_regex(texts, r"(?i)^\s*f(alse)?\s*$", "0")
        return _parse_integers(name, texts, validator, row_of_value)
    validator.reject(
        name, wrong, lambda at: f"{texts[at].as_py()!r} is not an integer of 64 bits", row_of_value
    )
    integers = strip_number(pc.if_else(fits, texts, no_text)).cast(pa.int64())
    if not pc.any(fits_unsigned).as_py():
        return integers
    unsigned = strip_number(pc.if_else(fits_unsigned, texts, no_text)).cast(pa.uint64())
    return pc.coalesce(integers, unsigned.view(pa.int64()))


def as_lists(spec: IdSpec, name: str, column: pa.Array, validator: RowValidator) -> pa.Array:
    """Return a list array. Texts are split at the separator; a missing text is an empty list.

    Without a separator texts are JSON, as in a text file scored by a model trained on lists.
    """
    if spec.separator and spec.encode == "bucketise":
        return split_vectors(column, spec.separator)
    if spec.separator:
        return split_texts(as_texts(column), spec.separator)
    if is_text(column.type):
        lists, wrong_R = parse_json_lists(column)
        rule = 'not a JSON list such as ["a", "b"] or [1, 2]'
        validator.reject(name, wrong_R, lambda row: f"value {column[row].as_py()!r}: {rule}")
        return lists
    if pt.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return column


def flatten_lists(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return all values and the offsets [R + 1] of the rows. A missing list is treated as empty."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _read_parallel_list(
    table: pa.Table, name: str, spec: IdSpec, offsets_R1: np.ndarray, validator: RowValidator
) -> np.ndarray:
    """Read another list column as [V] float64; rows whose lists differ in length are bad."""
    lists = single_array(table, name)
    if is_text(lists.type):
        lists = as_lists(spec, name, lists, validator)
    flat, found_R1 = flatten_lists(lists)
    lengths_R, found_lengths_R = np.diff(offsets_R1), np.diff(found_R1)
    row_of_value = np.repeat(np.arange(len(lists)), found_lengths_R)
    if name == spec.order_by:
        values = _read_order(flat, name, validator, row_of_value)
    else:
        if is_text(flat.type):
            flat = parse_numbers(as_texts(flat), name, validator, row_of_value)
        numbers = flat.cast(pa.float64(), safe=False).fill_null(np.nan)
        values = numbers.to_numpy(zero_copy_only=False)
    wrong_R = lengths_R != found_lengths_R
    validator.reject(
        name,
        wrong_R,
        lambda row: f"{found_lengths_R[row]} values, but {lengths_R[row]} in {spec.column!r}",
    )
    if not wrong_R.any():
        return values
    aligned_V = np.zeros(offsets_R1[-1])  # 0 in bad rows
    aligned_V[np.repeat(~wrong_R, lengths_R)] = values[np.repeat(~wrong_R, found_lengths_R)]
    return aligned_V


def _read_order(
    flat: pa.Array, name: str, validator: RowValidator, row_of_value: np.ndarray
) -> np.ndarray:
    """Read numbers, and times as seconds since 1970: [V] float64, NaN where one is missing."""
    if not is_text(flat.type):
        return parse_times(flat)
    texts, missing = as_texts(flat), pa.scalar(None, pa.string())
    is_number = pc.match_substring_regex(texts, NUMBER_PATTERN)
    times = parse_times(pc.if_else(is_number, missing, texts))
    numbers = parse_times(strip_number(pc.if_else(is_number, texts, missing)).cast(pa.float64()))
    wrong = np.isnan(times) & ~is_number.fill_null(True).to_numpy(zero_copy_only=False)
    rule = "neither a number nor a time such as 2024-01-16 12:00"
    validator.reject(name, wrong, lambda at: f"value {texts[at].as_py()!r}: {rule}", row_of_value)
    return np.where(np.isnan(times), numbers, times)


def _truncate_lists(
    offsets_R1: np.ndarray, max_length: int, end: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the values that are kept, and the new offsets."""
    lengths_R = np.minimum(np.diff(offsets_R1), max_length)
    starts_R = offsets_R1[1:] - lengths_R if end == "last" else offsets_R1[:-1]
    new_R1 = np.concatenate([[0], np.cumsum(lengths_R)])
    indices = np.repeat(starts_R - new_R1[:-1], lengths_R) + np.arange(new_R1[-1])
    return indices, new_R1
