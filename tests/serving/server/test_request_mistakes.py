"""A request that cannot be read is told by the field or the tensor that is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runner.data.columns.schema_file import parse_schema
from runner.data.columns.times import TEXT_DATES, TIME_FORMS
from runner.data.core.fitted import FittedTransforms
from runner.errors import DataError
from runner.serving.artifact.folder import GraphSpec, LookupGroup, SequenceInput
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.rows.encode import Transforms
from runner.serving.server.columns import ServedColumn, example_request, make_table, served_columns
from runner.serving.server.prepared import check_ids, read_arrays
from runner.serving.server.tensors import Tensor, parse_request

AGE = {"name": "age", "datatype": "FP64", "shape": [2], "data": [1.0, 2.0]}


def binary(datatype: str, size: Any) -> dict[str, Any]:
    spec = {"name": "age", "datatype": datatype, "shape": [1]}
    return {"inputs": [{**spec, "parameters": {"binary_data_size": size}}]}


BODIES: list[tuple[Any, bytes, str]] = [
    (b"{", b"", "the request is no JSON: "),
    ([], b"", "the request is no JSON object"),
    ({"parameters": 5}, b"", "the request: parameters is no object"),
    (
        {"parameters": {"binary_data_output": "false"}, "inputs": [AGE]},
        b"",
        "^the request: parameters.binary_data_output='false': expected true or false$",
    ),
    (
        {"inputs": [AGE], "outputs": [{"name": "y", "parameters": {"binary_data": [1]}}]},
        b"",
        r"^outputs: parameters.binary_data=\[1\]: expected true or false$",
    ),
    ({"inputs": 5}, b"", "inputs: is no list of objects"),
    ({"inputs": []}, b"", "inputs: the request has none"),
    ({"inputs": [{"datatype": "FP32"}]}, b"", "inputs: a tensor has no name"),
    ({"inputs": [AGE, AGE]}, b"", "inputs: two tensors are called 'age'"),
    ({"inputs": [AGE]}, b"12345678", "bytes, but its tensors end at"),
    ({"inputs": [{**AGE, "shape": [-1]}]}, b"", r"'age': shape \[-1\]: expected 1 to 3 sizes"),
    ({"inputs": [{**AGE, "shape": [3]}]}, b"", r"has 2 elements, but the shape \[3\] has 3"),
    ({"inputs": [{**AGE, "data": None}]}, b"", "'age': has neither data"),
    ({"inputs": [{**AGE, "data": [1.0, "x"]}]}, b"", "'age': \"x\" is no element of FP64"),
    ({"inputs": [{**AGE, "data": [[1.0], 2.0]}]}, b"", "'age': row 1: 2.0: no list, as other rows"),
    (binary("FP64", "8"), b"", "'age': binary_data_size '8' is no size"),
    (binary("FP64", 7), b"1234567", "'age': 7 bytes are no multiple of the 8 of FP64"),
    (binary("BYTES", 5), b"\x09\x00\x00\x00a", "'age': text 0 ends behind the tensor's bytes"),
    (binary("BYTES", 5), b"\x01\x00\x00\x00\xff", "'age': holds a text that is not UTF-8"),
]


@pytest.mark.parametrize(("content", "tail", "told"), BODIES)
def test_a_body_that_cannot_be_read_is_told_by_field_and_tensor(content, tail, told):
    head = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(DataError, match=told):
        parse_request(head + tail, str(len(head)))


def test_a_length_of_the_json_that_is_none_is_refused():
    with pytest.raises(DataError, match="'9' is no length within the 2 bytes"):
        parse_request(b"{}", "9")


def test_an_id_that_is_null_is_none():
    given = {"inputs": [AGE]}
    for id_, expected in ((None, ""), ("7", "7"), (0, "0")):
        assert parse_request(json.dumps({**given, "id": id_}).encode(), None).id == expected


def tensor(name: str, values: list[Any], kind: pa.DataType, datatype: str, *shape: int) -> Tensor:
    return Tensor(name, datatype, shape or (len(values),), pa.array(values, kind))


def ids(name: str, values: list[Any], *shape: int) -> Tensor:
    return tensor(name, values, pa.int64(), "INT64", *shape)


COLUMNS = (ServedColumn("a", "INT64"), ServedColumn("b", "INT64", is_list=True))
TABLES = [
    ([ids("a", [1, 2]), ids("b", [1], 1, 1)], "column 'b' has 1 rows, but 'a' has 2"),
    ([ids("a", [1, 2], 1, 2)], r"column 'a': shape \[1, 2\]: expected one value for each row"),
    ([ids("a.valid", [1, 2])], "tensor 'a.valid': expected BOOL, an element for each row"),
    ([ids("b", [1, 2])], "column 'b' holds lists: give 'b.lengths'"),
    (
        [tensor("b.lengths", [1.0], pa.float64(), "FP64")],
        "tensor 'b.lengths': expected INT64, a length for each row",
    ),
    (
        [tensor("b", [[1, 2], None], pa.list_(pa.int64()), "INT64"), ids("b.lengths", [1, 1])],
        "tensor 'b.lengths': differs from the lengths of the lists of 'b'",
    ),
    (
        [ids("b", [1, 2, 3, 4], 2, 2), ids("b.lengths", [1, 3])],
        r"tensor 'b.lengths': differs from the shape \[2, 2\] of 'b'",
    ),
    (
        [ids("b.lengths", [1, 2])],
        "'b.lengths': its lengths must not be negative, and add up to the 2 elements",
    ),
]


@pytest.mark.parametrize(("changed", "told"), TABLES)
def test_columns_that_do_not_fit_are_told_by_name(changed, told):
    good = [ids("a", [1, 2]), ids("b", [1, 2], 2, 1)]
    with pytest.raises(DataError, match=told):
        make_table(COLUMNS, {t.name: t for t in [*good, *changed]})


@pytest.mark.parametrize("form", TIME_FORMS)
def test_the_example_that_a_server_offers_has_times_in_their_form_and_lists(form):
    columns = {
        "weekday": {"column": "at", "encode": "weekday", "input": form},
        "hour": {"column": "at", "encode": "hour", "input": form},
        "tags": {"separator": "json", "encode": "hash", "num_rows": 9},
    }
    days = {"column": "born", "encode": "days", "input": form, "until": "at", "until_input": form}
    declared = parse_schema({"labels": ["click"], "numeric": {"d": days}, "categorical": columns})
    declared = replace(declared, labels=())  # as an artifact has it
    raw = Transforms(declared, FittedTransforms(num_rows={"weekday": 8, "hour": 25, "tags": 9}))
    graph = GraphSpec("model", ("d",), (LookupGroup((*columns,)),), (), ("click",))
    body = json.dumps(example_request(raw, [graph])).encode()
    sent = parse_request(body, None).inputs
    rows = encode_rows(raw, make_table(served_columns(raw, [graph]), sent), ["d", *columns])
    assert rows.dense["d"].tolist() == [0]  # both are that time
    # Tuesday, the 16th of January 2024, at noon, where the form has hours
    assert rows.ids["weekday"].values.tolist() == [1]
    assert rows.ids["hour"].values.tolist() == [0 if form in ("yyyymmdd", *TEXT_DATES) else 12]
    assert len(rows.ids["tags"].values) == 1


GOOD = {
    "dense": tensor("dense", [0.5, 1.0], pa.float32(), "FP32", 2, 1),
    "values_0": ids("values_0", [1, 2]),
    "lengths_0": ids("lengths_0", [1, 1], 1, 2),
}
INPUTS = [
    (ids("value_0", [1]), "'value_0': no input of graph model; nearest: 'values_0'"),
    (ids("dense", [1, 2], 2, 1), "'dense': expected FP32, without missing elements"),
    (
        tensor("dense", [1.0, np.inf], pa.float32(), "FP32", 2, 1),
        "'dense': holds a value that is not finite",
    ),
    (
        tensor("values_0", [[1], [2]], pa.list_(pa.int64()), "INT64"),
        "'values_0': nested lists must have the form of its shape",
    ),
    (ids("lengths_0", [1, 1, 1], 1, 3), r"'lengths_0': has shape \[1, 3\], expected \[1, 2\]"),
]


@pytest.mark.parametrize(("wrong", "told"), INPUTS)
def test_prepared_ids_that_do_not_fit_are_told_by_tensor(wrong, told):
    spec = GraphSpec("model", ("age",), (LookupGroup(("a",)),), (), ("logits",))
    assert read_arrays(spec, GOOD)[1] == 2
    with pytest.raises(DataError, match=told):
        read_arrays(spec, {**GOOD, wrong.name: wrong})


def test_lengths_and_weights_that_do_not_fit_their_ids_are_told_by_tensor():
    group, sequence = LookupGroup(("a",), weighted=True), SequenceInput("history", 3)
    spec = GraphSpec("model", (), (group,), (sequence,), ("logits",))
    declared = parse_schema({"labels": ["click"], "categorical": {"a": {"num_rows": 4}}})
    raw = Transforms(declared, FittedTransforms(num_rows={"a": 4, "history": 4}))
    good = {
        "values_0": np.array([1, 2]),
        "lengths_0": np.array([[1, 1]]),
        "weights_0": np.ones(2, np.float32),
        "ids_0": np.zeros((2, 3), np.int64),
        "length_0": np.array([3, 0]),
    }
    for name, wrong, told in (
        ("weights_0", np.ones(3, np.float32), "'weights_0': expected one element for each of val"),
        ("length_0", np.array([4, 0]), "'length_0': must lie in 0 to 3"),
    ):
        with pytest.raises(DataError, match=told):
            check_ids(spec, raw, {**good, name: wrong})


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [123456789, None, 1.5], pa.array([123456789.0, None, 1.5])),
        ("FP32", [16777217, 1], pa.array([16777217, 1])),
        ("FP64", [2**60 + 1, None], pa.array([2**60 + 1, None])),
        ("FP64", [[2**60 + 1, None], [7]], pa.array([[2**60 + 1, None], [7]])),
        ("FP32", [0.1, 7], pa.array([0.1, 7], pa.float32())),
    ],
)
def test_large_whole_numbers_among_floats_keep_all_digits(datatype, data, expected):
    tensor = {"name": "x", "datatype": datatype, "shape": [len(data)], "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    assert parse_request(body, None).inputs["x"].values.equals(expected)


def test_whole_numbers_that_doubles_do_not_hold_are_refused_beside_fractions():
    tensor = {"name": "x", "datatype": "FP64", "shape": [2], "data": [2**60 + 1, 0.5]}
    with pytest.raises(
        DataError,
        match="tensor 'x', FP64: element 0: 1152921504606846977: Integer value 1152921504606846977",
    ):
        parse_request(json.dumps({"inputs": [tensor]}).encode(), None)
