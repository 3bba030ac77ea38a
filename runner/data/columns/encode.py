"""Encodes raw rows as the plain columns of prepared files: checked, with all transforms applied.

Shape legend: R rows of a chunk, V values of a list column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.amounts import Amounts
from runner.data.columns.column_specs import Declared, IdSpec, LabelSpec, NumericSpec
from runner.data.columns.list_matches import read_matches
from runner.data.columns.raw_ids import (
    RawIds,
    fill_missing,
    find_missing,
    read_ids,
    read_integers,
    read_time_column,
)
from runner.data.columns.times import DAYS, SECONDS_OF_DAY, TIME_PARTS, as_seconds, is_seconds
from runner.data.columns.vectors import parse_numbers, read_vectors
from runner.data.columns.vocabulary import look_up_ids
from runner.data.core.columns import (
    CARRIED_PREFIX,
    GROUP_PREFIX,
    WEIGHT_COLUMN,
    NumericColumn,
    narrowest_id_type,
)
from runner.data.core.fitted import FittedTransforms
from runner.data.core.transforms import as_float32, hash_ids, transform_numeric
from runner.data.files.bad_rows import RowValidator
from runner.data.files.read_files import RowChunk, as_texts, is_text, single_array
from runner.data.growing.settings import NO_ID

_SOURCE_OF_NUMBERS = attrgetter(
    *("column", "size", "separator", "encode", "until", "until_input", "of", "amounts", "input")
)


def encode_chunk(
    chunk: RowChunk, declared: Declared, fitted: FittedTransforms, validator: RowValidator
) -> pa.Table:
    """Encode all columns of a chunk. Bad rows get harmless values and weight 0.

    Raises:
        DataError: for the first bad row, unless bad rows are skipped.
    """
    table = chunk.table
    assert table is not None
    columns = {s.name: pa.array(encode_label(table, s, validator)) for s in declared.labels}
    numbers = encode_numbers(table, declared.numeric, fitted, validator)
    columns |= {name: pa.array(x) for name, x in numbers}
    for spec in declared.ids:
        columns |= _encode_ids(spec, table, fitted, validator)
    for name in declared.groups:
        values, missing = read_integers(single_array(table, name), name, validator, None)
        validator.reject(name, missing, lambda row: "the group is missing")
        columns[GROUP_PREFIX + name] = pa.array(values)
    for name in declared.carried:
        column = single_array(table, name)
        if pt.is_dictionary(column.type):  # each chunk has a dictionary of its own
            column = column.cast(column.type.value_type)
        columns[CARRIED_PREFIX + name] = column
    if declared.weight or validator.skip_bad_rows:
        weight = np.ones(chunk.num_rows, np.float32)
        if declared.weight:
            weight = _encode_weight(table, declared.weight, validator)
        columns[WEIGHT_COLUMN] = pa.array(np.where(validator.bad_R, np.float32(0), weight))
    return pa.table(columns)


def encode_label(table: pa.Table, label: LabelSpec, validator: RowValidator) -> np.ndarray:
    """Encode a label column: [R] int8 where all allowed values are small integers, or float32.

    Raises:
        DataError: for a missing or forbidden value, unless bad rows are skipped.
    """
    if label.is_text:
        raw, missing = _read_texts(table, label, validator)
    else:
        raw, missing = read_numbers(table, label.column, label.amounts, validator)
    if label.default is None:
        validator.reject(label.column, missing, lambda row: "the label is missing")
    else:
        raw = np.where(missing, label.default, raw)
    allowed = label.allowed
    if allowed is None and label.above is None and label.type == "binary":
        allowed = (0.0, 1.0)
    if allowed is None:
        stored = as_float32(raw) if label.above is None else raw
        wrong, rule = ~np.isfinite(stored), "a finite number"
        if label.link:  # a prediction with a log link is above 0
            wrong, rule = wrong | (stored < 0), "a finite number from 0 on, as `link: log` needs"
    else:
        # a column of float32 has the nearest number, such as 1.10000002 for 1.1
        wrong = np.logical_and.reduce([(raw != v) & (raw != np.float32(v)) for v in allowed])
        rule = " or ".join(f"{value:g}" for value in allowed)
    validator.reject(label.column, wrong, lambda row: f"value {raw[row]:g}: allowed is {rule}")
    if label.above is not None:
        raw = raw > label.above
    raw = np.where(validator.bad_R, 0, raw)
    fits_int8 = label.above is not None or all(v in range(128) for v in allowed or (0.5,))
    return raw.astype(np.int8 if fits_int8 else np.float32)


def _read_texts(
    table: pa.Table, label: LabelSpec, validator: RowValidator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers, [R] float64, and which are missing, [R] bool; NaN is missing.

    The number is 1 where a text is a positive one, or the index of the text among the grades.
    """
    values = single_array(table, label.column)
    if pt.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    texts = pc.utf8_trim_whitespace(as_texts(values))
    if is_text(values.type):
        values = texts
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    what, known = ("classes", label.classes) if label.classes else ("grades", label.grades)
    if known:
        places = find_places(values, known)
        unknown = places.is_null().to_numpy(zero_copy_only=False) & ~missing
        listed = ", ".join(known)
        validator.reject(
            label.column, unknown, lambda row: f"value {texts[row].as_py()!r}: {what} are {listed}"
        )
    if label.positive:
        is_one = find_places(values, label.positive).is_valid()
        return is_one.to_numpy(zero_copy_only=False).astype(np.float64), missing
    return places.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64), missing


def find_places(values: pa.Array, names: Iterable[str]) -> pa.Array:
    """Return the index of each value among names; 1.0, as pandas writes 1 next to a gap, is `1`.

    Likewise 1 matches the name `1.0`, which pandas displays for it. Names of booleans, fractions
    and decimals may have any spelling of their type, such as `True` and `1e10`.
    """
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    texts = as_texts(values)
    known = pa.array([name.strip() for name in names], pa.string())
    places = pc.index_in(texts, known)
    if pt.is_boolean(values.type) or pt.is_floating(values.type) or pt.is_decimal(values.type):
        own = pa.array([_as_type(name, values.type) for name in known], values.type)
        places = pc.coalesce(places, pc.index_in(values, own, skip_nulls=True))
    if not any(pc.any(pc.ends_with(values, ".0")).as_py() for values in (texts, known)):
        return places
    whole, whole_known = (
        pc.replace_substring_regex(values, r"^(-?\d+)\.0$", r"\1") for values in (texts, known)
    )
    return pc.coalesce(places, pc.index_in(whole, whole_known))


def _as_type(name: pa.StringScalar, type_: pa.DataType) -> pa.Scalar:
    try:
        return name.cast(type_)
    except pa.ArrowInvalid:
        return pa.scalar(None, type_)


def encode_numbers(
    table: pa.Table, specs: Iterable[NumericSpec], fitted: FittedTransforms, validator: RowValidator
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each dense feature's name and its values: [R] float32, 0 in bad rows.

    Args:
        fitted: without a fitted mean, a feature is not standardised.

    Raises:
        DataError: for a value that is missing without a default or not finite, unless bad rows are
            skipped.
    """
    for (column, size, _, encode, *_), same in groupby(specs, _SOURCE_OF_NUMBERS):
        features = list(same)
        if size:
            raw_RS, missing_RS = read_vectors(table, features[0], validator)
        elif encode == DAYS:
            raw_R, missing_R = _read_days(table, features[0], validator)
        elif encode:
            raw_R = read_matches(table, features[0], validator)
            missing_R = np.zeros(len(raw_R), bool)
        else:
            raw_R, missing_R = read_numbers(table, column, features[0].amounts, validator)
        for spec in features:
            if size:
                raw_R, missing_R = raw_RS[:, spec.element], missing_RS[:, spec.element]
            yield spec.name, _encode_numeric(spec, raw_R, missing_R, fitted, validator)


def build_numeric_column(spec: NumericSpec, fitted: FittedTransforms) -> NumericColumn:
    """Return the transforms of a numeric column; without a fitted mean, it is not standardised."""
    mean, std = fitted.moments.get(spec.name, (0.0, 1.0))
    low, high = spec.clip
    return NumericColumn(spec.column, spec.log1p, low, high, spec.default, mean, std)


def _encode_numeric(
    spec: NumericSpec,
    raw: np.ndarray,
    missing: np.ndarray,
    fitted: FittedTransforms,
    validator: RowValidator,
) -> np.ndarray:
    if missing.any():
        if spec.default is None:
            what = f"is missing, or {spec.until!r} is," if spec.until else "is missing"
            validator.reject(spec.place, missing, lambda row: f"{what} and has no default")
        raw = np.where(missing, spec.default or 0.0, raw)
    column = build_numeric_column(spec, fitted)
    x = transform_numeric(column, raw)
    # the raw values are checked as well, since clipping would hide an infinite one
    wrong = ~np.isfinite(x)
    wrong |= ~np.isfinite(raw)
    validator.reject(spec.place, wrong, lambda row: f"value {raw[row]:g}: {column.finite_rule}")
    x[validator.bad_R] = 0  # wrong values were marked as bad above
    return x


def read_numbers(
    table: pa.Table,
    name: str,
    amounts: Amounts | None = None,
    validator: RowValidator | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return [R] float64 with 0 where a value is missing, and [R] bool: which are missing.

    NaN is a missing value, since NumPy, Spark and Polars write it for one.

    Args:
        amounts: how texts are converted; None: they are plain numbers.
        validator: rejects texts that are no numbers; needed for a column of texts.

    Raises:
        DataError: for the first text that is not a number, unless bad rows are skipped.
    """
    column = single_array(table, name)
    if is_text(column.type):
        assert validator is not None
        column = parse_numbers(as_texts(column), name, validator, None, amounts)
    missing = find_missing(column)
    if is_seconds(column.type):
        column = as_seconds(column)
    if not (pt.is_floating(column.type) or pt.is_integer(column.type)):
        column = column.cast(pa.float64())  # booleans, decimals
    values = fill_missing(column).to_numpy(zero_copy_only=False).astype(np.float64)
    if np.isnan(values).any():
        missing = missing | np.isnan(values)
        values = np.where(missing, 0.0, values)
    return values, missing


def _read_days(
    table: pa.Table, spec: NumericSpec, validator: RowValidator
) -> tuple[np.ndarray, np.ndarray]:
    """Read days since 1970, or up to another time; returns what `read_numbers` returns."""

    def read(column: str, form: str) -> np.ndarray:
        return read_time_column(single_array(table, column), column, form or "seconds", validator)

    seconds_R = read(spec.column, spec.input)
    if spec.until:
        seconds_R = read(spec.until, spec.until_input) - seconds_R
    missing_R = np.isnan(seconds_R)
    return np.where(missing_R, 0.0, seconds_R) / SECONDS_OF_DAY, missing_R


def _encode_weight(table: pa.Table, name: str, validator: RowValidator) -> np.ndarray:
    raw, missing = read_numbers(table, name)
    wrong = missing | ~(np.isfinite(as_float32(raw)) & (raw >= 0))
    rule = "a weight is finite and not negative"
    validator.reject(
        name, wrong, lambda row: f"value {'null' if missing[row] else raw[row]}: {rule}"
    )
    return np.where(wrong, 0, raw).astype(np.float32)


def _encode_ids(
    spec: IdSpec, table: pa.Table, fitted: FittedTransforms, validator: RowValidator
) -> dict[str, pa.Array]:
    ids = read_ids(spec, table, validator, fitted.id_types)
    num_rows = fitted.num_rows[spec.table_name]
    values = map_to_table_rows(spec, ids, num_rows, fitted, validator)
    values = values.astype(np.int64 if spec.growth else narrowest_id_type(num_rows))
    if ids.offsets_R1 is None:
        return {spec.name: pa.array(values)}
    offsets = pa.array(ids.offsets_R1.astype(np.int32))
    columns = {spec.name: pa.ListArray.from_arrays(offsets, pa.array(values))}
    if ids.weights is not None:
        columns[f"{spec.name} weights"] = pa.ListArray.from_arrays(offsets, pa.array(ids.weights))
    return columns


def map_to_table_rows(
    spec: IdSpec, ids: RawIds, num_rows: int, fitted: FittedTransforms, validator: RowValidator
) -> np.ndarray:
    """Map values to rows of an embedding table with `num_rows` rows.

    Ids of a growing table stay raw, since training assigns their rows.

    Raises:
        DataError: for a value without a row, unless bad rows are skipped.
    """
    values, missing = ids.values, ids.missing
    name = spec.column or spec.name
    if spec.encode == "vocabulary":
        rows = look_up_ids(values, fitted.vocabularies[spec.table_name], missing)
        return rows if spec.default is None else np.where(missing, spec.default, rows)
    if spec.encode == "growing":
        return np.where(missing, NO_ID, values)
    default = spec.default
    if spec.encode == "bucketise":
        default = len(fitted.boundaries[spec.name]) + 1 if default is None else default
    elif spec.encode in TIME_PARTS:
        default = TIME_PARTS[spec.encode] if default is None else default
    if default is None and not spec.cross:
        validator.reject(name, missing, lambda _: "is missing and has no default", ids.row_of_value)
    if spec.encode == "bucketise":
        rows = np.searchsorted(fitted.boundaries[spec.name], values.view(np.float64), "right")
    elif spec.encode == "hash" or spec.cross:
        rows = hash_ids(values, num_rows, spec.salt)
    else:
        rows = values
    rows = np.where(missing, default or 0, rows) if missing.any() and not spec.cross else rows
    wrong = rows.astype(np.int64, copy=False).view(np.uint64) >= num_rows  # negatives become large
    if wrong.any():
        if spec.out_of_range == "error":
            rule = f"its table has the rows 0 to {num_rows - 1}"
            validator.reject(name, wrong, lambda at: f"value {rows[at]}: {rule}", ids.row_of_value)
        rows = np.where(wrong, default or 0, rows)
    return rows


def make_blank_rows(num_rows: int, like: pa.Schema) -> pa.Table:
    """Make harmless rows of weight 0 as placeholders of rows that could not be read."""
    columns = {}
    for field in like:
        is_number = pt.is_integer(field.type) or pt.is_floating(field.type)
        blank: object = [] if pt.is_list(field.type) else 0 if is_number else None
        columns[field.name] = pa.array([blank] * num_rows, field.type)
    return pa.table(columns, schema=like)
