"""Raw columns become the inputs of exported graphs, by the transforms of the training.

Shape legend: R rows, F features, V values of list columns, L sequence length.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.encode import encode_numbers, map_to_table_rows
from runner.data.columns.raw_ids import RawIds, read_ids
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_columns import find_absent
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk, flatten_structs, unpack_columns
from runner.errors import DataError, nearest_hint
from runner.serving.artifact.folder import GraphSpec
from runner.serving.rows.encode import Transforms, check_input_types, with_types_of_roles
from runner.serving.tables import as_arrow

REQUEST = DataFile("the rows")


@dataclass(frozen=True)
class RequestRows(RowChunk):
    """Rows in memory, which belong to no file."""

    def describe_row(self, row: int) -> str:
        return f"row {self.first_row + row}"


@dataclass(frozen=True)
class EncodedRows:
    """Features after all transforms; every id is a row of its feature's own table."""

    num_rows: int
    dense: Mapping[str, np.ndarray]  # [R] float32
    ids: Mapping[str, RawIds]
    bad_R: np.ndarray  # rows that cannot be scored; their values are harmless
    messages: Sequence[str] = field(default_factory=list)  # about the first of them


def as_table(rows: Any, declared: Declared) -> pa.Table:
    """Return raw columns as an Arrow table.

    Args:
        rows: a DataFrame of pandas or polars, an Arrow table or anything else that offers Arrow's C
            stream; column -> values; or a list of rows, column -> value each.
        declared: the columns that are read; optional ones are added to a list of rows.

    Raises:
        DataError: for values that make no column, or columns of different lengths.
    """
    is_one = isinstance(rows, Mapping) and any(map(_is_scalar, rows.values()))
    if is_one or isinstance(rows, str | bytes):
        description = "one row, which goes into a list" if is_one else f"a {type(rows).__name__}"
        raise DataError(
            f"the rows are {description}; they can be an Arrow table, a DataFrame, a mapping from "
            "columns to their values, or a list of rows"
        )
    if not isinstance(rows, Mapping | Sequence):
        rows = as_arrow(rows)
    is_list, is_empty = isinstance(rows, Sequence), isinstance(rows, Sequence) and not rows
    try:
        if not isinstance(rows, pa.Table):
            columns: Any = rows
            if isinstance(rows, Sequence):
                names = dict.fromkeys(name for row in rows for name in dict(row))
                columns = {name: [row.get(name) for row in rows] for name in names}
            rows = pa.table(
                {name: _as_array(values, name) for name, values in dict(columns).items()}
            )
        table = flatten_structs(rows)
        if is_list:
            absent = find_absent(declared.optional_columns, declared.columns, table.column_names)
            for name in declared.columns if is_empty else absent:
                table = table.append_column(name, pa.nulls(table.num_rows))
        return table
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"the rows are no table: {error}") from error


def _as_array(values: Any, name: str) -> Any:
    """Return values as an Arrow array; whole numbers of 2^63 and more are unsigned, also in lists.

    Raises:
        DataError: naming the first row whose value is of another type than those before it.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values)
    except OverflowError:
        is_list = any(isinstance(value, Sequence | np.ndarray) for value in values)
        return pa.array(values, pa.list_(pa.uint64()) if is_list else pa.uint64())
    except (pa.ArrowException, TypeError, ValueError) as error:
        if not isinstance(values, list):
            raise DataError(f"{REQUEST}: column {name!r}: {error}") from error
        row = bisect.bisect_left(range(len(values)), True, key=lambda n: _fails(values[: n + 1]))
        raise DataError(
            f"row {row}, column {name!r}: {values[row]!r} is of another type than the values "
            f"before it: {error}"
        ) from error


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bytes | float | int | np.generic)


def _fails(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return True
    return False


def encode_rows(
    raw: Transforms, rows: Any, features: Collection[str], *, skip_bad_rows: bool = False
) -> EncodedRows:
    """Encode the raw columns of some features.

    Args:
        rows: raw columns, as `as_table` takes them.
        features: names of those that the graphs read.
        skip_bad_rows: mark bad rows instead of raising an error for the first.

    Raises:
        DataError: naming the column that is missing or of a wrong type, and the first bad row.
    """
    declared = select_features(raw.declared, features)
    table = _prepare_columns(replace(raw, declared=declared), as_table(rows, declared))
    chunk = RequestRows(REQUEST, None, 0, table.num_rows, table)
    return encode_chunk_features(chunk, declared, raw.fitted, skip_bad_rows=skip_bad_rows)


def select_features(declared: Declared, features: Collection[str]) -> Declared:
    """Return the declaration of some features only, and of the ids that matches compare."""
    numeric = tuple(spec for spec in declared.numeric if spec.name in features)
    matched = {column for spec in numeric if spec.of for column in spec.columns}
    ids = tuple(s for s in declared.ids if s.name in features or s.column in matched)
    return replace(declared, numeric=numeric, ids=ids)


def encode_chunk_features(
    chunk: RowChunk, declared: Declared, fitted: FittedTransforms, *, skip_bad_rows: bool
) -> EncodedRows:
    """Encode the features of a chunk, as `encode_chunk` does for prepared files.

    Raises:
        DataError: for the first bad row, unless bad rows are skipped.
    """
    table = chunk.table
    assert table is not None
    validator = RowValidator.for_chunk(chunk, skip_bad_rows)
    dense = dict(encode_numbers(table, declared.numeric, fitted, validator))
    ids = {}
    for spec in declared.ids:
        raw_ids = read_ids(spec, table, validator, fitted.id_types)
        num_rows = fitted.num_rows[spec.table_name]
        values = map_to_table_rows(spec, raw_ids, num_rows, fitted, validator).astype(np.int64)
        # the graph does not check this: an id too large would read a row of another stacked table
        assert not len(values) or 0 <= int(values.min()) <= int(values.max()) < num_rows, spec.name
        ids[spec.name] = replace(raw_ids, values=values)
    return EncodedRows(chunk.num_rows, dense, ids, validator.bad_R, validator.messages)


def _prepare_columns(transforms: Transforms, rows: pa.Table) -> pa.Table:
    """Select the columns that are read, and check their types.

    Raises:
        DataError: for a column that is missing, duplicate, or of a type that its role refuses.
    """
    declared = transforms.declared
    for name in declared.columns:
        count = len(rows.schema.get_all_field_indices(name))
        if count == 0:
            unread = [n for n in rows.column_names if n not in declared.columns]
            raise DataError(f"{REQUEST}: no column {name!r}{nearest_hint(name, unread, 3)}")
        if count > 1:
            raise DataError(
                f"{REQUEST}: {count} columns are called {name!r}; give each a name of its own"
            )
    table = with_types_of_roles(transforms, rows.select(list(declared.columns)))
    check_input_types(transforms, table.schema, str(REQUEST), same_format=True)
    return unpack_columns(table)


def graph_inputs(spec: GraphSpec, rows: EncodedRows) -> dict[str, np.ndarray]:
    """Return the inputs of a graph by name; see `GraphSpec`."""
    inputs: dict[str, np.ndarray] = {}
    if spec.dense:
        inputs["dense"] = np.stack([rows.dense[name] for name in spec.dense], axis=1)
    for n, group in enumerate(spec.groups):
        features = [rows.ids[name] for name in group.features]
        inputs[f"values_{n}"] = np.concatenate([ids.values for ids in features])
        inputs[f"lengths_{n}"] = np.stack([_lengths(ids, rows.num_rows) for ids in features])
        if group.weighted:
            weights = [
                np.ones(len(ids.values), np.float32) if ids.weights is None else ids.weights
                for ids in features
            ]
            inputs[f"weights_{n}"] = np.concatenate(weights)
    for n, sequence in enumerate(spec.sequences):
        ids = rows.ids[sequence.name]
        lengths_R = _lengths(ids, rows.num_rows)
        padded_RL = np.zeros((rows.num_rows, sequence.max_length), np.int64)
        padded_RL[np.arange(sequence.max_length) < lengths_R[:, None]] = ids.values
        inputs[f"ids_{n}"], inputs[f"length_{n}"] = padded_RL, lengths_R
    return inputs


def _lengths(ids: RawIds, num_rows: int) -> np.ndarray:
    if ids.offsets_R1 is None:
        return np.ones(num_rows, np.int64)
    return np.diff(ids.offsets_R1).astype(np.int64)


def graph_features(specs: Sequence[GraphSpec]) -> tuple[str, ...]:
    """Return the features that some graphs read, each once."""
    names: list[str] = []
    for spec in specs:
        names += [*spec.dense, *(n for group in spec.groups for n in group.features)]
        names += [sequence.name for sequence in spec.sequences]
    return tuple(dict.fromkeys(names))
