"""Raw rows -> the plain columns that prepared files hold: checked, with all transforms applied.

Shape legend: R rows of a piece, V values of a list column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.core.columns import CARRIED_PREFIX, GROUP_PREFIX, WEIGHT_COLUMN, NumericColumn
from runner.data.core.fitted import FittedTransforms
from runner.data.core.transforms import as_float32, hash_ids, splitmix64, transform_numeric
from runner.data.tabular.bad_rows import RowValidator
from runner.data.tabular.hash_text import hash_texts
from runner.data.tabular.read_files import RowChunk, is_text, match_integers, strip_number
from runner.data.tabular.schema_file import Declared, IdSpec, LabelSpec, NumericSpec
from runner.data.tabular.vocabulary import look_up_ids

MAX_EXACT_INTEGER = 2**53


@dataclass(frozen=True)
class RawIds:
    """Values of an id column: one a row, or with offsets lists."""

    values: np.ndarray  # int64 [R], or [V]
    missing: np.ndarray  # bool
    offsets_R1: np.ndarray | None = None
    row_of: np.ndarray | None = None  # [V] row of every value
    weights: np.ndarray | None = None  # [V] float32


def encode_chunk(
    chunk: RowChunk, declared: Declared, fitted: FittedTransforms, validator: RowValidator
) -> pa.Table:
    """Bad rows are told to `validator` and come out with harmless values and weight 0."""
    table = chunk.table
    assert table is not None
    columns: dict[str, pa.Array] = {}
    for label in declared.labels:
        columns[label.name] = pa.array(encode_label(table, label, validator))
    for numeric in declared.numeric:
        x = encode_numeric(table, numeric, validator, build_numeric_column(numeric, fitted))
        columns[numeric.name] = pa.array(x)
    for spec in declared.ids:
        columns |= _id_columns(spec, table, fitted, validator)
    for name in declared.groups:
        columns[GROUP_PREFIX + name] = pa.array(_group(table, name, validator))
    for name in declared.carried:
        column = _flat(table, name)
        if pt.is_dictionary(column.type):  # each piece has a dictionary of its own
            column = column.cast(column.type.value_type)
        columns[CARRIED_PREFIX + name] = column
    if declared.weight or validator.skip_bad_rows:
        weight = np.ones(chunk.num_rows, np.float32)
        if declared.weight:
            weight = _weight(table, declared.weight, validator)
        columns[WEIGHT_COLUMN] = pa.array(np.where(validator.bad_R, np.float32(0), weight))
    return pa.table(columns)


def encode_label(table: pa.Table, label: LabelSpec, validator: RowValidator) -> np.ndarray:
    raw, missing = read_numbers(table, label.column)
    validator.reject(label.column, missing, lambda row: "the label is missing")
    allowed = label.allowed
    if allowed is None and label.above is None and label.type == "binary":
        allowed = (0.0, 1.0)
    if allowed is None:
        held = as_float32(raw) if label.above is None else raw
        wrong, rule = ~np.isfinite(held), "a finite number"
    else:
        wrong = np.logical_and.reduce([raw != value for value in allowed])
        rule = " or ".join(f"{value:g}" for value in allowed)
    validator.reject(label.column, wrong, lambda row: f"value {raw[row]:g}: allowed is {rule}")
    if label.above is not None:
        raw = raw > label.above
    raw = np.where(validator.bad_R, 0, raw)
    small = label.above is not None or all(v in range(128) for v in allowed or (0.5,))
    return raw.astype(np.int8 if small else np.float32)


def build_numeric_column(spec: NumericSpec, fitted: FittedTransforms) -> NumericColumn:
    mean, deviation = fitted.moments.get(spec.name, (0.0, 1.0))
    low, high = spec.clip
    return NumericColumn(spec.column, spec.log1p, low, high, spec.default, mean, deviation)


def encode_numeric(
    table: pa.Table, spec: NumericSpec, validator: RowValidator, numeric: NumericColumn
) -> np.ndarray:
    raw, missing = read_numbers(table, spec.column)
    if missing.any():
        if spec.default is None:
            validator.reject(spec.column, missing, lambda row: "is missing and has no default")
        raw = np.where(missing, spec.default or 0.0, raw)
    # before the transforms as well: clipping would hide an infinite value
    x = transform_numeric(numeric, raw)
    wrong = ~(np.isfinite(x) & np.isfinite(raw))
    validator.reject(
        spec.column, wrong, lambda row: f"value {raw[row]:g}: not finite after its transforms"
    )
    return np.where(validator.bad_R | wrong, np.float32(0), x)


def read_numbers(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """[R] float64 (0 where missing) and whether it is missing."""
    column = _flat(table, name)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if not (pt.is_floating(column.type) or pt.is_integer(column.type)):
        column = column.cast(pa.float64())  # booleans, decimals
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values.astype(np.float64), missing


def _weight(table: pa.Table, name: str, judge: RowValidator) -> np.ndarray:
    raw, missing = read_numbers(table, name)
    wrong = missing | ~(np.isfinite(as_float32(raw)) & (raw >= 0))
    judge.reject(
        name,
        wrong,
        lambda row: (
            f"value {'null' if missing[row] else raw[row]}: a weight is finite and not negative"
        ),
    )
    return np.where(wrong, 0, raw).astype(np.float32)


def _group(table: pa.Table, name: str, judge: RowValidator) -> np.ndarray:
    values, missing = read_integers(_flat(table, name), name, judge, None)
    judge.reject(name, missing, lambda row: "the group is missing")
    return values


def _id_columns(
    spec: IdSpec, table: pa.Table, learnt: FittedTransforms, judge: RowValidator
) -> dict[str, pa.Array]:
    ids = read_ids(spec, table, judge)
    size = learnt.num_rows[spec.table or spec.name]
    values = map_to_table_rows(spec, ids, size, learnt, judge)
    values = values.astype(np.int32 if size <= 2**31 else np.int64)
    if ids.offsets_R1 is None:
        return {spec.name: pa.array(values)}
    offsets = pa.array(ids.offsets_R1.astype(np.int32))
    columns = {spec.name: pa.ListArray.from_arrays(offsets, pa.array(values))}
    if ids.weights is not None:
        columns[f"{spec.name} weights"] = pa.ListArray.from_arrays(offsets, pa.array(ids.weights))
    return columns


def map_to_table_rows(
    spec: IdSpec, ids: RawIds, size: int, fitted: FittedTransforms, validator: RowValidator
) -> np.ndarray:
    """Values -> rows of the table."""
    values, missing = ids.values, ids.missing
    name = spec.column or spec.name
    if spec.encode == "vocabulary":
        found = look_up_ids(values, fitted.vocabularies[spec.table or spec.name], missing)
        return found if spec.default is None else np.where(missing, spec.default, found)
    default = spec.default
    if spec.encode == "bucketise":
        default = len(fitted.boundaries[spec.name]) + 1 if default is None else default
    if default is None and not spec.cross:
        validator.reject(name, missing, lambda _: "is missing and has no default", ids.row_of)
    if spec.encode == "bucketise":
        rows = np.searchsorted(fitted.boundaries[spec.name], values.view(np.float64), "right")
    elif spec.encode == "hash" or spec.cross:
        rows = hash_ids(values, size, spec.salt)
    else:
        rows = values
    rows = np.where(missing, default or 0, rows) if missing.any() and not spec.cross else rows
    wrong = (rows < 0) | (rows >= size)
    if wrong.any():
        if spec.out_of_range == "error":
            rule = f"its table has the rows 0 to {size - 1}"
            validator.reject(name, wrong, lambda at: f"value {rows[at]}: {rule}", ids.row_of)
        rows = np.where(wrong, default or 0, rows)
    return rows


def read_ids(spec: IdSpec, table: pa.Table, validator: RowValidator) -> RawIds:
    """The values of an id column as numbers; lists cut to their longest length, in time order."""
    if spec.cross:
        total = np.zeros(table.num_rows, np.uint64)
        for place, name in enumerate(spec.cross):
            values, missing = read_integers(_flat(table, name), name, validator, None)
            values[missing] = np.iinfo(np.int64).min  # missing is a value like others
            total = splitmix64(total ^ splitmix64(values.view(np.uint64), place), 0)
        return RawIds(total.view(np.int64), np.zeros(table.num_rows, bool))
    column = _flat(table, spec.column)
    if not spec.is_list:
        return RawIds(*_values(spec, column, validator, None))
    lists = _lists(spec, column)
    flat, offsets_R1 = _laid_flat(lists)
    row_of: np.ndarray = np.repeat(np.arange(len(lists)), np.diff(offsets_R1))
    values, missing = _values(spec, flat, validator, row_of)
    weights: np.ndarray | None = None
    if spec.weights:
        raw = _beside(table, spec.weights, spec, offsets_R1, validator)
        wrong = ~(np.isfinite(raw) & (np.abs(raw) <= np.finfo(np.float32).max))
        validator.reject(spec.weights, wrong, lambda at: f"weight {raw[at]}: not finite", row_of)
        weights = np.where(wrong, 0, raw).astype(np.float32)
    if spec.is_sequence:
        if spec.order_by:
            times = _beside(table, spec.order_by, spec, offsets_R1, validator)
            order = np.lexsort((times, row_of))
            values, missing = values[order], missing[order]
        keep, offsets_R1 = _cut(offsets_R1, spec.max_length, spec.keep)
        return RawIds(values[keep], missing[keep], offsets_R1, row_of[keep])
    return RawIds(values, missing, offsets_R1, row_of, weights)


def _values(
    spec: IdSpec, flat: pa.Array, judge: RowValidator, row_of: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if spec.encode == "bucketise":
        missing = flat.is_null().to_numpy(zero_copy_only=False)
        values = flat.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False).copy()
        wrong = np.isnan(values)
        judge.reject(spec.column, wrong, lambda at: f"value {values[at]}: not a number", row_of)
        return values.view(np.int64), missing
    as_number = spec.encode == "as_is" or spec.input == "integer"
    if as_number and is_text(flat.type):
        flat = _parsed(spec, flat, judge, row_of)
    elif spec.input == "string" and not is_text(flat.type):
        flat = flat.cast(pa.string())
    values, missing = read_integers(flat, spec.column, judge, row_of)
    return values, missing


def _parsed(
    spec: IdSpec, texts: pa.Array, judge: RowValidator, row_of: np.ndarray | None
) -> pa.Array:
    texts = texts.cast(pa.string())
    fits = match_integers(texts)
    wrong = ~fits.fill_null(True).to_numpy(zero_copy_only=False)
    judge.reject(spec.column, wrong, lambda at: f"{texts[at].as_py()!r} is no integer", row_of)
    texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    return strip_number(texts).cast(pa.int64())


def read_integers(
    column: pa.Array, name: str, validator: RowValidator, row_of: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Integers as they are, texts by their 64-bit number, floats only if they are whole."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if is_text(column.type):
        return hash_texts(column), missing
    if pt.is_floating(column.type):
        values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        whole = (values == np.rint(values)) & (np.abs(values) <= MAX_EXACT_INTEGER)
        validator.reject(name, ~whole, lambda at: f"value {values[at]}: is no integer", row_of)
        return np.where(whole, values, 0).astype(np.int64), missing
    if not pt.is_integer(column.type):
        column = column.cast(pa.int64())  # booleans, dates, times
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64), missing


def _lists(spec: IdSpec, column: pa.Array) -> pa.Array:
    """A list array without null lists."""
    if spec.separator:
        texts = column.cast(pa.string())
        lists = pc.split_pattern(texts, spec.separator)
        empty = pc.equal(texts, "").fill_null(True)
        return pc.if_else(empty, pa.scalar([], lists.type), lists)
    if pt.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return column


def _laid_flat(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """All values end to end, and where each row's begin. A missing list is an empty one."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _beside(
    table: pa.Table, name: str, spec: IdSpec, offsets_R1: np.ndarray, judge: RowValidator
) -> np.ndarray:
    """[V] float64 of another list column; rows whose lists differ in length are bad."""
    lists = _flat(table, name)
    if is_text(lists.type):
        lists = _lists(spec, lists)
    flat, own_R1 = _laid_flat(lists)
    if is_text(flat.type) or pt.is_timestamp(flat.type):
        flat = flat.cast(pa.int64() if pt.is_timestamp(flat.type) else pa.float64())
    values = flat.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    wanted, own = np.diff(offsets_R1), np.diff(own_R1)
    wrong = wanted != own
    judge.reject(
        name, wrong, lambda row: f"{own[row]} values, but {wanted[row]} in {spec.column!r}"
    )
    if not wrong.any():
        return values
    place = np.repeat(own_R1[:-1] - offsets_R1[:-1], wanted) + np.arange(offsets_R1[-1])
    there = ~np.repeat(wrong, wanted)
    return np.where(there, values[np.where(there, place, 0)] if len(values) else 0.0, 0.0)


def _cut(offsets_R1: np.ndarray, longest: int, end: str) -> tuple[np.ndarray, np.ndarray]:
    """Places of the values that are kept, and the new offsets."""
    lengths = np.diff(offsets_R1)
    kept = np.minimum(lengths, longest)
    starts = offsets_R1[1:] - kept if end == "last" else offsets_R1[:-1]
    new_R1 = np.concatenate([[0], np.cumsum(kept)])
    places = np.repeat(starts - new_R1[:-1], kept) + np.arange(new_R1[-1])
    return places, new_R1


def _flat(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def make_blank_rows(num_rows: int, like: pa.Schema) -> pa.Table:
    """Harmless rows of weight 0, for those that could not be read."""
    columns = {}
    for field in like:
        if pt.is_list(field.type):
            zeros = pa.array(np.zeros(num_rows + 1, np.int32))
            empty = pa.array([], field.type.value_type)
            columns[field.name] = pa.ListArray.from_arrays(zeros, empty)
        elif pt.is_integer(field.type) or pt.is_floating(field.type):
            columns[field.name] = pa.array(np.zeros(num_rows)).cast(field.type)
        else:
            columns[field.name] = pa.nulls(num_rows, field.type)
    return pa.table(columns, schema=like)
