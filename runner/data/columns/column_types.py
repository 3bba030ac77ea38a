"""The types of declared columns: in text files, in Parquet files, and after rewriting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.column_specs import Declared, IdSpec, LabelSpec, NumericSpec
from runner.data.columns.split_setting import Split
from runner.data.columns.times import TEXT_DATES, TIME_PARTS, is_seconds, is_temporal
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.core.columns import (
    CARRIED_PREFIX,
    GROUP_PREFIX,
    WEIGHT_COLUMN,
    CategoricalColumn,
    Columns,
    Encode,
    LabelColumn,
    NumericColumn,
    SequenceColumn,
    is_list,
)
from runner.data.core.fitted import FittedTransforms
from runner.data.files.read_files import is_text, unpacked_type
from runner.errors import DataError


def text_column_types(declared: Declared, split: Split) -> dict[str, pa.DataType]:
    """Return the types with which the columns of text files are read.

    A column with several roles is read as a number if one of them needs a number.
    """
    plain = [column for column, is_amount in _number_columns(declared) if not is_amount]
    types: dict[str, pa.DataType] = dict.fromkeys(plain, pa.float64())
    for spec in declared.ids:
        if spec.is_list:
            continue
        if spec.encode == "bucketise" and spec.input not in AMOUNT_FORMS:
            types.setdefault(spec.column, pa.float64())
        elif (spec.encode == "as_is" or spec.input == "integer") and not spec.cross:
            types.setdefault(spec.column, pa.int64())
    dates = {split.column} if split.input in TEXT_DATES else set()
    for name in _time_columns(declared, split) - dates:
        types.setdefault(name, pa.float64())
    if declared.interactions and declared.interactions.rating:
        types.setdefault(declared.interactions.rating, pa.float64())
    for name in [*declared.columns, *([split.column] if split.column else [])]:
        types.setdefault(name, pa.string())
    return types


def text_file_schema(
    inferred: pa.Schema,
    types: Mapping[str, pa.DataType],
    declared: Declared,
    split: Split,
    *,
    json_lines: bool,
) -> pa.Schema:
    """Return the types with which the columns of one text file are read.

    Args:
        types: as `text_column_types` returns them.
        inferred: the guessed types. Times keep them; and so do values of JSON, except whole
            numbers, which may be read as other types.
    """
    decisive = _time_columns(declared, split)
    time_columns = {*declared.time_forms, *decisive}

    def choose(field: pa.Field) -> pa.DataType:
        type_ = types.get(field.name, field.type)
        if is_text(field.type) and field.name in decisive:
            return pa.string()  # `check_split_type` or the first pass checks that these are times
        if is_temporal(field.type) and field.name in time_columns:
            return field.type
        if not json_lines or pt.is_null(field.type) or is_temporal(field.type):
            return type_
        return type_ if pt.is_integer(field.type) and pt.is_floating(type_) else field.type

    return pa.schema([pa.field(f.name, choose(f)) for f in inferred])


def check_column_types(
    declared: Declared, file_schema: pa.Schema, path: str, *, is_input: bool = False
) -> None:
    """Check that the roles of the columns can take the types in a file without loss.

    Args:
        is_input: whether the rows are to be scored: a list may be a text, which is then JSON, and
            a column may have no value, if missing ones have a default, or it holds ids, such as
            the items that are looked up.

    Raises:
        DataError: naming the file, the column, its type and what its role accepts.
    """

    def require(column: str, fits: bool, expected: str) -> None:
        if not fits:
            type_ = file_schema.field(column).type
            raise DataError(f"{path}: column {column!r} has type {type_}, expected {expected}")

    def require_number(column: str, type_: pa.DataType, is_amount: bool) -> None:
        fits = _is_number(type_) or is_seconds(type_) or (is_amount and is_text(type_))
        fits |= is_input and pt.is_null(type_) and column in declared.optional_columns
        advice = "; texts such as $1,234.50 need `input: amount`"
        if is_input:
            advice = "; the run has learnt from numbers, so give 20.5 and not the text '20.5'"
        require(column, fits, f"a number{advice if is_text(type_) else ''}")

    for column, is_amount in _number_columns(declared):
        require_number(column, file_schema.field(column).type, is_amount)
    for vector in (s for s in declared.numeric if s.size and s.element == 0):
        type_ = file_schema.field(vector.column).type
        if vector.separator:
            require(vector.column, is_text(type_), "a text, since it has a separator")
        elif not (is_input and is_text(type_)):
            fits = is_list(type_) and _is_number(type_.value_type)
            require(vector.column, fits, "a list of numbers; a text needs a separator")
    for column in declared.time_forms:
        type_ = file_schema.field(column).type
        require(column, is_temporal(type_) or is_seconds(type_) or _is_id(type_), "a time")
    for spec in (s for s in declared.ids if s.encode not in TIME_PARTS):
        for column in spec.cross or (spec.column,):
            type_ = file_schema.field(column).type
            if spec.separator:
                require(column, is_text(type_), "a text, since it has a separator")
                continue
            if spec.is_list and is_input and is_text(type_):
                continue
            if spec.is_list:
                require(column, is_list(type_), "a list; a text needs a separator")
                type_ = type_.value_type
            if spec.encode == "bucketise":
                require_number(column, type_, spec.input in AMOUNT_FORMS)
            else:
                is_empty = is_input and pt.is_null(type_)
                require(column, is_empty or _is_id(type_), "an integer or a text")
        for column in filter(None, (spec.weights, spec.order_by)):
            type_ = file_schema.field(column).type
            fits = (bool(spec.separator) or is_input) and is_text(type_)
            if is_list(type_):
                type_ = type_.value_type
                fits = _is_number(type_) or is_text(type_) or pt.is_null(type_)
                fits |= column == spec.order_by and (is_temporal(type_) or is_seconds(type_))
            what = "numbers or times" if column == spec.order_by else "numbers"
            require(column, fits, f"a list of {what}, as long as the ids")
    events = declared.interactions.columns if declared.interactions else ()
    for column in (name for name in events if name in file_schema.names):  # a stream needs none
        require(column, not pt.is_nested(file_schema.field(column).type), "one value a row")
    for column in declared.groups:
        require(column, _is_id(file_schema.field(column).type), "an integer or a text")


def numbers_in_texts(declared: Declared) -> set[str]:
    """Return the columns whose texts are several numbers with a separator other than a comma.

    These are vectors, weights of lists, and lists of numbers for buckets. JSON has decimal points.
    """
    known_separators = ("", ",", "json")
    lists = [s for s in declared.ids if s.separator not in known_separators]
    return {
        *(s.column for s in declared.numeric if s.size and s.separator not in known_separators),
        *(s.weights for s in lists if s.weights),
        *(s.column for s in lists if s.encode == "bucketise"),
    }


def id_types(declared: Declared, file_schema: pa.Schema) -> dict[str, str]:
    """Return column -> `integer`, `unsigned` or `string` where a text would be a different id.

    Times, numbers for buckets and texts with a separator are read alike from every type.
    """
    types = {}
    for spec in declared.ids:
        if spec.separator or spec.encode == "bucketise" or spec.encode in TIME_PARTS:
            continue
        for column in spec.cross or (spec.column,):
            type_ = file_schema.field(column).type
            type_ = type_.value_type if is_list(type_) else type_
            if not pt.is_null(type_):
                integer = "unsigned" if pt.is_uint64(type_) else "integer"
                is_number = not spec.cross and (spec.encode == "as_is" or spec.input == "integer")
                types[column] = "string" if is_text(type_) and not is_number else integer
    return types


def direct_columns(declared: Declared, file_schema: pa.Schema) -> Columns | None:
    """Return the columns of files that can be read unchanged; None if they must be rewritten."""
    if not all(map(_needs_no_rewrite, declared.ids)) or any(
        s.standardise or s.size or s.input or s.encode for s in declared.numeric
    ):
        return None
    specs: list[LabelSpec | NumericSpec | IdSpec] = [*declared.labels, *declared.numeric]
    if any(spec.column != spec.name for spec in [*specs, *declared.ids]):
        return None
    if any((s.above, s.default) != (None, None) or s.is_text or s.input for s in declared.labels):
        return None
    for spec in declared.ids:
        type_ = file_schema.field(spec.column).type
        type_ = type_.value_type if spec.is_list and is_list(type_) else type_
        if not pt.is_integer(type_):
            return None
    if not all(pt.is_integer(file_schema.field(name).type) for name in declared.groups):
        return None
    types = [file_schema.field(name).type for name, _ in _number_columns(declared)]
    if any(pt.is_decimal(t) or pt.is_dictionary(t) or is_seconds(t) for t in types):
        return None
    return Columns(
        labels=_label_columns(declared),
        numeric=tuple(
            NumericColumn(s.name, s.log1p, s.clip[0], s.clip[1], s.default)
            for s in declared.numeric
        ),
        categorical=tuple(
            CategoricalColumn(
                s.name,
                s.num_rows or 0,
                cast(Encode, s.encode),  # others need a rewrite
                s.salt,
                s.default,
                s.is_list,
                pooling="mean" if s.pooling == "mean" else "sum",
                table=s.table,
                growth=s.growth,
            )
            for s in declared.ids
        ),
        weight=declared.weight,
        groups=declared.groups,
        carried=declared.carried,
    )


def rewritten_columns(
    declared: Declared, fitted: FittedTransforms, *, has_weights: bool
) -> Columns:
    """Return the columns of rewritten files, to which all transforms have been applied.

    Args:
        has_weights: whether the rows have weights because bad ones are skipped.
    """
    pooled = [s for s in declared.ids if not s.is_sequence]
    events = declared.interactions
    overlapping = events.sequence_names if events and events.train_on == "every" else ()
    return Columns(
        labels=_label_columns(declared, allow_zero=has_weights),
        numeric=tuple(NumericColumn(s.name) for s in declared.numeric),
        categorical=tuple(
            CategoricalColumn(
                s.name,
                fitted.num_rows[s.table_name],
                "growing" if s.growth else "as_is",
                is_list=s.is_list,
                weights=f"{s.name} weights" if s.weights else None,
                mean_length=fitted.mean_length.get(s.name, 1.0),
                pooling="mean" if s.pooling == "mean" else "sum",
                table=s.table,
                growth=s.growth,
                num_special=FIRST_VALUE_ID if s.encode == "vocabulary" else 0,
            )
            for s in pooled
        ),
        sequences=tuple(
            SequenceColumn(
                s.name,
                fitted.num_rows[s.table_name],
                s.max_length,
                s.table,
                "growing" if s.growth else "as_is",
                s.growth,
                overlaps=s.name in overlapping,
            )
            for s in declared.ids
            if s.is_sequence
        ),
        weight=WEIGHT_COLUMN if declared.weight or has_weights else None,
        groups=tuple(GROUP_PREFIX + name for name in declared.groups),
        carried=tuple(CARRIED_PREFIX + name for name in declared.carried),
    )


def _time_columns(declared: Declared, split: Split) -> set[str]:
    """Return the columns of times that select or order rows, and are no features."""
    names = {str(split.column)} if split.kind == "time" else set()
    return names | ({declared.interactions.time} if declared.interactions else set())


def _number_columns(declared: Declared) -> list[tuple[str, bool]]:
    """Return the columns of numbers, and whether their texts are read as amounts."""
    columns = [(s.column, bool(s.input)) for s in declared.labels if not s.is_text]
    columns += [(s.column, bool(s.input)) for s in declared.numeric if not (s.size or s.encode)]
    return columns + ([(declared.weight, False)] if declared.weight else [])


def _label_columns(declared: Declared, *, allow_zero: bool = False) -> tuple[LabelColumn, ...]:
    """Return the columns of labels; with `allow_zero`, skipped rows have 0 despite `allowed`."""
    more = (0.0,) if allow_zero else ()
    return tuple(
        LabelColumn(
            s.name,
            "binary" if s.type == "binary" else "regression",
            (*s.allowed, *more) if s.allowed is not None and s.above is None else None,
            s.one_of,
            "log" if s.link else "",
            s.scale or 1.0,
        )
        for s in declared.labels
    )


def _needs_no_rewrite(spec: IdSpec) -> bool:
    return (
        spec.encode in ("as_is", "hash", "growing")
        and spec.num_rows is not None
        and spec.out_of_range == "error"
        and spec.input != "string"
        and not (spec.cross or spec.separator or spec.weights or spec.is_sequence)
    )


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_decimal)
    return any(is_kind(unpacked_type(type_)) for is_kind in kinds)


def _is_id(type_: pa.DataType) -> bool:
    return _is_number(type_) or is_text(type_)
