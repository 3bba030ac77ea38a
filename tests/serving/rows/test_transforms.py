"""Ids are read as in the training: a text and a number are different ids."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, orc

from runner.data.columns.hash_text import hash_texts
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError
from runner.serving.artifact.folder import read_schema, write_schema
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.rows.encode import Transforms
from runner.serving.rows.transforms import with_id_types

ROWS = pa.table({"click": [0, 1], "user": [7, 8], "city": ["Bern", "Chur"], "at": [1.7e9, 1.8e9]})
SCHEMA = {
    "labels": ["click"],
    "categorical": {
        "user": {"encode": "vocabulary"},
        "city": {"encode": "vocabulary"},
        "hour": {"column": "at", "encode": "hour"},
    },
}


def write(path, format_: str) -> None:
    if format_ == "jsonl":
        path.write_text(ROWS.to_pandas().to_json(orient="records", lines=True))
    elif format_ in ("csv", "tsv"):
        options = csv.WriteOptions(delimiter="," if format_ == "csv" else "\t")
        csv.write_csv(ROWS, path, options)
    else:
        writers = {"parquet": pq.write_table, "orc": orc.write_table}
        writers.get(format_, feather.write_feather)(ROWS, path)


@pytest.mark.parametrize(
    ("format_", "user_is_text"),
    # every value of a CSV or TSV is a text; whatever has types keeps them
    [("csv", True), ("tsv", True), *((f, False) for f in ("parquet", "arrow", "orc", "jsonl"))],
)
def test_every_format_tells_whether_ids_were_texts_or_numbers(tmp_path, format_, user_is_text):
    path = tmp_path / f"rows.{format_}"
    write(path, format_)
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA))
    schema = str(tmp_path / "schema.yaml")
    recipe = TableRecipe(path=str(path), format=format_, schema=schema)
    found = with_id_types(FittedTransforms(), recipe).id_types
    assert found == {"user": "string" if user_is_text else "integer", "city": "string"}
    assert recipe.schemas[str(path)].field("user").type == (
        pa.string() if user_is_text else pa.int64()
    )


def test_a_part_of_a_time_is_read_in_its_own_unit_whatever_its_column_was():
    fitted = FittedTransforms(num_rows={"hour": 24 + 2}, id_types={"user": "integer"})
    raw = Transforms(parse_schema(SCHEMA), fitted)
    found = encode_rows(raw, ROWS, ["hour"]).ids["hour"]
    expected = [int(np.datetime64(int(s), "s").astype(object).hour) for s in (1.7e9, 1.8e9)]
    assert found.values.tolist() == expected


def test_histories_have_the_types_of_the_ids_that_they_are_made_of(tmp_path):
    pq.write_table(pa.table({"u": ["a"], "i": [1], "t": [2]}), tmp_path / "events.parquet")
    schema = {"interactions": {"user": "u", "item": "i", "time": "t"}, "split": "leave_one_out"}
    recipe = TableRecipe("parquet", str(tmp_path / "events.parquet"), schema=schema)
    types = with_id_types(FittedTransforms(), recipe).id_types
    assert types == {"u": "string", "i": "integer", "history": "integer"}


def test_a_key_that_an_object_lacks_is_a_missing_value_where_one_may_miss():
    schema = {
        "labels": ["click"],
        "numeric": {"price": {"default": 2.5}, "age": {}},
        "categorical": {"city": {"encode": "vocabulary"}, "at": {"encode": "hour"}},
    }
    words = np.sort(hash_texts(pa.array(["Bern"])))
    fitted = FittedTransforms(num_rows={"city": 3, "at": 25}, vocabularies={"city": words})
    raw = Transforms(replace(parse_schema(schema), labels=()), fitted)
    names = ["price", "age", "city", "at"]
    whole = [{"price": None, "age": 3.0, "city": None, "at": None}]
    expected, found = encode_rows(raw, whole, names), encode_rows(raw, [{"age": 3.0}], names)
    assert found.dense["price"].tolist() == expected.dense["price"].tolist() == [2.5]
    for name in ("city", "at"):
        assert found.ids[name].values.tolist() == expected.ids[name].values.tolist()
    for row, told in (
        ({"price": 1.0}, "no column 'age'"),  # which has no default
        ({"age": 3.0, "prise": 1.0}, "no column 'price'; nearest: 'prise'"),
        ({"other": 3.0}, "no column 'price'"),  # hardly a row of this model
    ):
        with pytest.raises(DataError, match=told):
            encode_rows(raw, [row], names)
    with pytest.raises(DataError, match="no column 'price'"):  # a table has columns, not keys
        encode_rows(raw, pa.table({"age": [3.0]}), names)


def test_lists_and_crosses_are_empty_where_an_object_lacks_their_keys():
    schema = {
        "labels": ["click"],
        "numeric": {"age": {}},
        "categorical": {
            "tags": {"list": True, "num_rows": 9},
            "words": {"separator": "|", "encode": "hash", "num_rows": 9},
            "user_city": {"cross": ["user", "city"], "num_rows": 50},
        },
        "sequences": {"seen": {"num_rows": 9, "max_length": 3}},
    }
    fitted = FittedTransforms(num_rows={"tags": 9, "words": 9, "user_city": 50, "seen": 9})
    raw = Transforms(replace(parse_schema(schema), labels=()), fitted)
    names = ["age", "tags", "words", "user_city", "seen"]
    nulls = dict.fromkeys(["tags", "words", "user", "city", "seen"])
    expected = encode_rows(raw, [{"age": 3.0, **nulls}], names)
    found = encode_rows(raw, [{"age": 3.0}], names)
    for name in names[1:]:
        assert found.ids[name].values.tolist() == expected.ids[name].values.tolist()
    assert not found.ids["tags"].values.size and not found.ids["seen"].values.size


def test_lists_that_all_rows_lack_may_be_nan_as_pandas_has_them():
    schema = {
        "labels": ["click"],
        "numeric": {"v": {"size": 2, "separator": "json", "default": 5}},
        "categorical": {
            "tags": {"list": True, "num_rows": 9},
            "words": {"separator": "|", "encode": "hash", "num_rows": 9},
        },
    }
    fitted = FittedTransforms(num_rows={"tags": 9, "words": 9})
    raw = Transforms(replace(parse_schema(schema), labels=()), fitted)
    rows = [{"v": nan, "tags": nan, "words": nan} for nan in [float("nan")] * 2]
    for given in (rows, pd.DataFrame(rows)):
        found = encode_rows(raw, given, ["tags", "words", "v[0]"])
        assert not found.ids["tags"].values.size and not found.ids["words"].values.size
        assert found.dense["v[0]"].tolist() == [5, 5]


def test_whole_numbers_that_a_float_rounds_are_numbers_in_buckets_and_vectors_too():
    huge = 2**53 + 1
    schema = {
        "labels": ["y"],
        "numeric": {"a": {}, "v": {"size": 2}},
        "categorical": {"b": {"column": "a", "encode": "bucketise", "boundaries": [0, 1e9]}},
    }
    fitted = FittedTransforms(num_rows={"b": 3}, boundaries={"b": [0.0, 1e9]})
    transforms = Transforms(Transforms(parse_schema(schema), fitted).features, fitted)
    rows = {"a": [huge, 5], "v": [[huge, 1], [2, 3]]}
    found = encode_rows(transforms, rows, ["a", "v[0]", "v[1]", "b"])
    assert found.dense["a"].tolist() == found.dense["v[0]"].tolist()[:1] + [5] == [2**53, 5]
    assert found.ids["b"].values.tolist() == [2, 1]


@pytest.mark.parametrize("separator", ["|", "json"])
def test_weights_in_texts_may_be_missing_like_their_ids(separator):
    tags = {"separator": separator, "encode": "hash", "num_rows": 9, "weights": "degrees"}
    schema = {"labels": ["click"], "categorical": {"tags": tags}}
    declared = replace(parse_schema(schema), labels=())
    transforms = Transforms(declared, FittedTransforms(num_rows={"tags": 9}))
    rows = {"tags": ["a|b" if separator == "|" else '["a", "b"]'], "degrees": ["1|2"]}
    if separator == "json":
        rows["degrees"] = ["[1, 2]"]
    assert encode_rows(transforms, rows, ["tags"]).ids["tags"].weights.tolist() == [1, 2]
    nothing = encode_rows(transforms, {"tags": [None], "degrees": [None]}, ["tags"])
    assert nothing.ids["tags"].offsets_R1.tolist() == [0, 0]


@pytest.mark.parametrize("form", ["seconds", "dmy"])
def test_an_empty_text_is_a_missing_time_as_in_csv(form):
    columns = {
        "numeric": {"age": {"column": "at", "encode": "days", "input": form, "default": 5}},
        "categorical": {"hour": {"column": "at", "encode": "hour", "input": form}},
    }
    declared = replace(parse_schema({"labels": ["click"], **columns}), labels=())
    transforms = Transforms(declared, FittedTransforms(num_rows={"hour": 25}))
    at = {"seconds": "1970-01-02 03:00", "dmy": "02.01.1970 03:00"}[form]
    rows = pa.table({"at": ["", at, None]})
    for table in (rows, pa.table({"at": rows["at"].cast(pa.large_string()).dictionary_encode()})):
        found = encode_rows(transforms, table, ["age", "hour"])
        assert found.dense["age"].tolist() == [5, 1.125, 5]
        assert found.ids["hour"].values.tolist() == [24, 3, 24]
    with pytest.raises(DataError, match="row 0, column 'at': value 'soon'"):
        encode_rows(transforms, {"at": ["soon"]}, ["hour"])


def test_a_request_has_the_decimal_commas_of_the_trainings_texts(tmp_path):
    schema = {
        "labels": ["click"],
        "numeric": {"place": {"size": 2, "separator": "|"}},
        "categorical": {
            "words": {"separator": "|", "encode": "hash", "num_rows": 9, "weights": "w"}
        },
        "decimal": ",",
    }
    fitted = FittedTransforms(num_rows={"words": 9})
    declared = replace(parse_schema(schema), labels=())
    write_schema(tmp_path, (), (), Transforms(declared, fitted, ","))
    *_, raw = read_schema(tmp_path)
    commas, points = ({"place": f"0{x}5|1", "words": "a|b", "w": f"1{x}5|2"} for x in ",.")
    names = ["place[0]", "place[1]", "words"]
    expected = encode_rows(raw, [points], [*names, "place"])
    found = encode_rows(raw, [commas], [*names, "place"])
    assert {k: v.tolist() for k, v in found.dense.items()} == {"place[0]": [0.5], "place[1]": [1.0]}
    assert found.ids["words"].weights.tolist() == expected.ids["words"].weights.tolist() == [1.5, 2]
    with pytest.raises(DataError, match="is not a number"):
        encode_rows(Transforms(declared, fitted), [commas], [*names, "place"])
