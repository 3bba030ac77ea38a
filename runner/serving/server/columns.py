"""The raw columns that a model reads, and the table made of a request's tensors.

Shape legend: R rows, V values of a list column, L length of lists that are equally long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.times import TEXT_DATES, example_time
from runner.errors import DataError, nearest_hint
from runner.serving.artifact.folder import GraphSpec
from runner.serving.artifact.raw_rows import graph_features, select_features
from runner.serving.rows.encode import Transforms
from runner.serving.server.tensors import Tensor

LENGTHS, VALID = ".lengths", ".valid"  # appended to a column's name: other tensors of the column


@dataclass(frozen=True)
class ServedColumn:
    """A raw column that a graph reads."""

    name: str
    datatype: str  # of its tensor, by the type of the column in training
    is_list: bool = False  # whether a row holds a list


def served_columns(raw: Transforms, graphs: Sequence[GraphSpec]) -> tuple[ServedColumn, ...]:
    """Return the raw columns that some graphs read, each once."""
    columns: dict[str, ServedColumn] = {}
    declared = select_features(raw.declared, graph_features(graphs))
    for column, form in declared.time_forms.items():
        datatype = "BYTES" if form in TEXT_DATES else "INT64"
        columns[column] = ServedColumn(column, datatype)
    for number in declared.numbers:
        datatype = "BYTES" if number.separator or number.input else "FP64"
        is_list = number.size > 0 and not number.separator
        columns.setdefault(number.column, ServedColumn(number.column, datatype, is_list))
    # a cross reads any type, so that the columns' own features decide
    for spec in sorted(declared.ids, key=lambda spec: bool(spec.cross)):
        is_list = spec.is_list and not spec.separator
        for column in spec.cross or (spec.column,):
            datatype = "INT64"
            id_type = raw.fitted.id_types.get(column)
            if spec.input in AMOUNT_FORMS or spec.separator or "string" in (spec.input, id_type):
                datatype = "BYTES"
            elif spec.encode == "bucketise":
                datatype = "FP64"
            elif id_type == "unsigned":
                datatype = "UINT64"
            columns.setdefault(column, ServedColumn(column, datatype, is_list))
        for column in (spec.weights, spec.order_by):
            if column:
                datatype = "BYTES" if spec.separator else "FP64"
                columns.setdefault(column, ServedColumn(column, datatype, is_list))
    return tuple(columns.values())


def describe_columns(columns: Sequence[ServedColumn]) -> list[dict[str, object]]:
    """Return the input tensors of columns, as metadata list them."""
    described: list[dict[str, object]] = []
    for column in columns:
        described.append({"name": column.name, "datatype": column.datatype, "shape": [-1]})
        if column.is_list:
            name = f"{column.name}{LENGTHS}"
            described.append({"name": name, "datatype": "INT64", "shape": [-1]})
    return described


def example_request(raw: Transforms, graphs: Sequence[GraphSpec]) -> dict[str, object]:
    """Return a request of one row that can be scored, with valid times and known integer ids."""
    inputs, time_forms = [], raw.declared.time_forms
    for column in served_columns(raw, graphs):
        value: object = {"INT64": 0, "UINT64": 0, "BYTES": "0", "FP64": 1.0}[column.datatype]
        if form := time_forms.get(column.name):
            value = example_time(form)
        for spec in raw.declared.ids:
            known = raw.fitted.vocabularies.get(spec.table_name)
            if spec.column != column.name:
                continue
            if spec.separator == "json":
                value = '["0"]'
            elif column.datatype != "BYTES" and known is not None and len(known):
                value = int(known.view("u8" if column.datatype == "UINT64" else "i8")[0])
        data = [value]
        for number in raw.declared.numbers:
            if number.size and number.column == column.name:
                data = [1.0] * number.size
                if number.separator:
                    numbers = ["1"] * number.size
                    is_json = number.separator == "json"
                    data = [
                        f"[{', '.join(numbers)}]" if is_json else number.separator.join(numbers)
                    ]
        tensor = {"name": column.name, "datatype": column.datatype, "shape": [1]}
        inputs.append({**tensor, "data": [data] if column.is_list else data})
    return {"inputs": inputs}


def make_table(columns: Sequence[ServedColumn], tensors: Mapping[str, Tensor]) -> pa.Table:
    """Make a table of a request's tensors; tensors of other columns are ignored.

    Raises:
        DataError: naming the column that is missing, of another length, or not written as its
            kind needs it.
    """
    arrays: dict[str, pa.Array] = {}
    missing = [column.name for column in columns if column.name not in tensors]
    if missing:
        names = {column.name for column in columns}
        near = nearest_hint(missing[0], [name for name in tensors if name not in names], 3)
        more = f", and {len(missing) - 1} more of the {len(columns)}" if missing[1:] else ""
        raise DataError(
            f"no column {missing[0]!r}{more}{near}; GET /v2/models/NAME/example is a whole request"
        )
    for column in columns:
        arrays[column.name] = array = _make_column(column, tensors)
        first = next(iter(arrays))
        if len(array) != len(arrays[first]):
            raise DataError(
                f"column {column.name!r} has {len(array)} rows, but {first!r} has "
                f"{len(arrays[first])}"
            )
    return pa.table(arrays)


def _make_column(column: ServedColumn, tensors: Mapping[str, Tensor]) -> pa.Array:
    tensor, name = tensors[column.name], column.name
    lengths, valid = (tensors.get(f"{name}{end}") for end in (LENGTHS, VALID))
    is_list = lengths is not None or pa.types.is_list(tensor.values.type)
    if column.is_list:
        array = _make_lists(tensor, lengths)
    elif is_list or tensor.shape[1:] not in ((), (1,)):
        raise DataError(
            f"column {name!r}: shape {[*tensor.shape]}: expected one value for each row"
        )
    else:
        array = tensor.values
    if valid is None:
        return array
    if valid.datatype != "BOOL" or len(valid.values) != len(array):
        raise DataError(f"tensor {valid.name!r}: expected BOOL, an element for each row")
    return pa.array(pc.if_else(valid.values, array, pa.scalar(None, array.type)))


def _make_lists(tensor: Tensor, lengths: Tensor | None) -> pa.Array:
    if pa.types.is_list(tensor.values.type):
        own_R = pc.fill_null(pc.list_value_length(tensor.values), 0)
        if lengths is not None and lengths.values.to_pylist() != own_R.to_pylist():
            raise DataError(
                f"tensor {lengths.name!r}: differs from the lengths of the lists of {tensor.name!r}"
            )
        return tensor.values
    if lengths is not None:
        lengths_R = _read_lengths(lengths, len(tensor.values))
        if len(tensor.shape) == 2 and lengths_R.tolist() != [tensor.shape[1]] * tensor.shape[0]:
            raise DataError(
                f"tensor {lengths.name!r}: differs from the shape {[*tensor.shape]} of "
                f"{tensor.name!r}"
            )
    elif len(tensor.shape) == 2:
        lengths_R = np.full(tensor.shape[0], tensor.shape[1])
    elif tensor.values.null_count == len(tensor.values):  # JSON lists, all of them missing
        return pa.nulls(len(tensor.values), pa.list_(tensor.values.type))
    elif pa.types.is_string(tensor.values.type):
        return tensor.values  # JSON, as in files
    else:
        raise DataError(
            f"column {tensor.name!r} holds lists: give {tensor.name + LENGTHS!r} (INT64, a length "
            "for each row), a shape [rows, length], nested lists in JSON, or texts such as [5]"
        )
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths_R)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, tensor.values)


def _read_lengths(lengths: Tensor, num_values: int) -> np.ndarray:
    if lengths.datatype not in ("INT32", "INT64") or lengths.values.null_count:
        raise DataError(f"tensor {lengths.name!r}: expected INT64, a length for each row")
    lengths_R: np.ndarray = lengths.values.to_numpy(zero_copy_only=False)
    if (lengths_R < 0).any() or int(lengths_R.sum(dtype=object)) != num_values:
        raise DataError(
            f"tensor {lengths.name!r}: its lengths must not be negative, and add up to the "
            f"{num_values} elements of its column"
        )
    return lengths_R
