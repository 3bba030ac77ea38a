"""Files of a stream whose columns have other types: those without any value, and ids as texts."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from runner.errors import DataError
from tests.data.streaming.files import SCHEMA, arrive, rows
from tests.data.streaming.test_folder import read, stream

OPTIONAL = SCHEMA | {
    "categorical": SCHEMA["categorical"] | {"item": {"num_rows": 1000, "default": 7}}
}
GROWING = SCHEMA | {
    "categorical": SCHEMA["categorical"] | {"item": {"encode": "growing", "num_rows": 90}}
}
ENCODED = OPTIONAL | {  # a vocabulary of texts, and a cross
    "categorical": OPTIONAL["categorical"]
    | {
        "city": {"encode": "vocabulary"},
        "pair": {"cross": ["user", "city"], "encode": "hash", "num_rows": 50},
    }
}


def with_city(table: pa.Table) -> pa.Table:
    return table.append_column("city", pa.array([f"c{n % 4}" for n in range(len(table))]))


def without_values(table: pa.Table, columns: list[str], *, typed: bool) -> pa.Table:
    """Return a table whose columns have no value, with their type or with Arrow's type null."""
    for name in columns:
        type_ = table.schema.field(name).type if typed else pa.null()
        table = table.set_column(table.schema.names.index(name), name, pa.nulls(len(table), type_))
    return table


@pytest.mark.parametrize("schema", [OPTIONAL, GROWING, ENCODED], ids=["plain", "growing", "learnt"])
def test_a_column_without_any_value_in_one_file_is_missing_there(tmp_path, schema):
    """As pandas and Arrow write it, such a column has no type; values are missing as in others."""
    columns = ["price", "item", "tags"] + (["city"] if schema is ENCODED else [])
    found = {}
    for typed in (True, False):
        folder = tmp_path / str(typed)
        folder.mkdir()
        arrive(folder, "1.parquet", with_city(rows(40)))
        arrive(folder, "2.parquet", without_values(with_city(rows(40)), columns, typed=typed))
        arrive(folder, "3.parquet", with_city(rows(40)))
        found[typed] = read(stream(folder, schema=schema), 40)[0]
    assert len(found[True]) == len(found[False]) == 3
    for typed, untyped in zip(found[True], found[False]):
        np.testing.assert_array_equal(typed.dense_BD, untyped.dense_BD)
        assert typed.sparse.keys() == untyped.sparse.keys()
        for key in typed.sparse.keys():  # noqa: SIM118
            assert typed.sparse[key].values().tolist() == untyped.sparse[key].values().tolist()


def test_a_column_that_must_have_values_names_the_first_row_without_one(tmp_path):
    arrive(tmp_path, "1.parquet", rows(40))
    arrive(tmp_path, "2.parquet", without_values(rows(40), ["age"], typed=False))
    with pytest.raises(DataError, match=r"2\.parquet: .*row 0, column 'age': is missing and has"):
        read(stream(tmp_path), 40)


@pytest.mark.parametrize("starts_empty", [False, True])
def test_ids_are_the_same_whatever_the_type_of_a_later_file(tmp_path, starts_empty):
    """Also where nothing is fitted; a text `12` was another id than the number."""
    hashed = {**SCHEMA["categorical"]["user"], "list": False}
    pair = {"cross": ["user", "item"], "encode": "hash", "num_rows": 50}
    schema = SCHEMA | {"categorical": SCHEMA["categorical"] | {"user": hashed, "pair": pair}}
    dataset = stream(tmp_path, schema=schema) if starts_empty else None
    table = rows(40)
    arrive(tmp_path, "1.parquet", table)
    at = table.schema.names.index("user")
    for number, type_ in enumerate((pa.string(), pa.float64()), 2):
        other = table.set_column(at, "user", table["user"].cast(type_))
        arrive(tmp_path, f"{number}.parquet", other)
    dataset = dataset or stream(tmp_path, schema=schema)
    first, *others = read(dataset, 40)[0]
    assert len(others) == 2
    for batch in others:
        for key in ("user", "pair"):
            assert batch.sparse[key].values().tolist() == first.sparse[key].values().tolist()


def test_texts_in_a_stream_that_began_in_an_empty_folder_name_the_setting_that_takes_them(
    tmp_path,
):
    table = rows(40)
    texts = pa.array([f"u{n}" for n in table["user"].to_pylist()])
    dataset = stream(tmp_path)
    at = table.schema.names.index("user")
    arrive(tmp_path, "1.parquet", table.set_column(at, "user", texts))
    with pytest.raises(DataError, match=r"1\.parquet: .* column 'user' are .*`input: string`"):
        read(dataset, 40)
    user = {**SCHEMA["categorical"]["user"], "input": "string"}
    schema = SCHEMA | {"categorical": SCHEMA["categorical"] | {"user": user}}
    (tmp_path / "1.parquet").rename(tmp_path / ".later")
    declared = stream(tmp_path, schema=schema)
    (tmp_path / ".later").rename(tmp_path / "1.parquet")
    assert len(read(declared, 40)[0]) == 1


def test_the_types_of_ids_are_kept_with_a_stream_that_fits_nothing(tmp_path):
    arriving = tmp_path / "arriving"
    arriving.mkdir()
    arrive(arriving, "1.parquet", rows(40))
    pair = {"cross": ["user", "item"], "encode": "hash", "num_rows": 50}
    schema = SCHEMA | {"categorical": SCHEMA["categorical"] | {"pair": pair}}
    stream(arriving, schema=schema).save_fitted_transforms(tmp_path / "data")
    saved = json.loads((tmp_path / "data" / "learnt.json").read_text())
    assert saved["id_types"] == dict.fromkeys(("user", "item", "tags"), "integer")


def test_a_vocabulary_has_each_id_once_whatever_its_type_in_a_file(tmp_path):
    whole = rows(80)
    texts = whole.set_column(4, "user", whole["user"].cast(pa.string()))
    arrive(tmp_path, "a.parquet", whole.slice(0, 40))
    arrive(tmp_path, "b.parquet", texts.slice(40))
    user = {"user": {"encode": "vocabulary"}}
    dataset = stream(tmp_path, schema=SCHEMA | {"categorical": SCHEMA["categorical"] | user})
    batches, _ = read(dataset, 40)
    found = [row for batch in batches for row in batch.sparse["user"].values().tolist()]
    places = np.unique(whole["user"].to_numpy(), return_inverse=True)[1]
    assert found == (2 + places).tolist()


def test_a_column_that_a_file_has_twice_is_named(tmp_path):
    arrive(tmp_path, "a.parquet", rows(40).append_column("user", rows(40)["user"]))
    with pytest.raises(DataError, match=r"a\.parquet: 2 columns are called 'user'; give each"):
        read(stream(tmp_path), 40)
