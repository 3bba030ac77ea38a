"""Parts of a table in which a column has different types, as pandas and Spark write them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError

SCHEMA = {
    "labels": {"click": {}},
    "numeric": {"price": {"default": -1}, "age": {"default": -1}},
    "categorical": {
        "user": {"num_rows": 10, "default": 0},
        "city": {"encode": "vocabulary", "min_count": 1},
        "tags": {"list": True, "encode": "vocabulary", "min_count": 1},
    },
}
COLUMNS = {
    "click": ([1, 0], [0, 1], [1, 1]),
    "price": ([None, None], [1, 2], [0.5, None]),
    "age": ([1.5, 2.5], [30, 40], [None, 7]),
    "user": ([1, 2], [3.0, None], [4, 5]),
    "city": (["Rome", "Oslo"], ["Lima", None], ["Rome", "Lima"]),
    "tags": ([[], []], [["a"], ["b", "a"]], [["b"], []]),
}
TYPES = {
    "click": (pa.int64(), pa.int8(), pa.int32()),
    "price": (pa.null(), pa.int64(), pa.float64()),
    "age": (pa.float32(), pa.int16(), pa.float64()),
    "user": (pa.int32(), pa.float64(), pa.int64()),
    "city": (pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
    "tags": (pa.list_(pa.null()), pa.list_(pa.string()), pa.large_list(pa.string())),
}
LAST = {name: (types[-1],) * 3 for name, types in TYPES.items()}


def write_parts(folder: Path, format_: str, types: dict) -> str:
    folder.mkdir()
    write = pq.write_table if format_ == "parquet" else pyarrow.feather.write_feather
    for k in range(3):
        rows = {name: pa.array(COLUMNS[name][k], types[name][k]) for name in COLUMNS}
        write(pa.table(rows), str(folder / f"part-{k}.{format_}"))
    return str(folder)


def read_rows(path: str, format_: str, **settings) -> list:
    data = open_table(
        TableRecipe(path=path, format=format_, schema=SCHEMA, mix=False, **settings),
        window_rows=100,
        prefetch=0,
    )
    (batch,) = data.batches("train", batch_size=6)
    sparse = batch.sparse
    held = (batch.dense_BD, batch.labels_BT, sparse.values(), sparse.offsets())
    return [tensor.tolist() for tensor in held]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_parts_have_the_rows_of_parts_of_one_type(tmp_path, format_):
    several = write_parts(tmp_path / "several", format_, TYPES)
    one = write_parts(tmp_path / "one", format_, LAST)
    assert read_rows(several, format_) == read_rows(one, format_, rewrite="always")
    dense, labels, *_ = read_rows(several, format_)
    assert [row[1] for row in dense] == [1.5, 2.5, 30, 40, -1, 7]
    assert [row[0] for row in labels] == [1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_schema_is_proposed_by_the_types_of_all_parts(tmp_path, format_):
    proposed = propose_schema(write_parts(tmp_path / "several", format_, TYPES))
    roles = {found.name: role.name for found, role in proposed.columns}
    assert roles["tags"] == roles["city"] == roles["user"] == "categorical"
    assert roles["price"] == "numeric" and roles["click"] == "labels"


def test_files_of_several_types_are_not_read_as_they_are(tmp_path):
    schema = {"labels": {"click": {}}, "categorical": {"user": {"num_rows": 10}}}
    for k, type_ in enumerate((pa.int64(), pa.int32())):
        rows = {"click": [0, 1], "user": pa.array([k, 1], type_), "other": pa.array([k, 1])}
        pq.write_table(pa.table(rows), tmp_path / f"part-{k}.parquet")
    assert not TableRecipe(path=str(tmp_path), format="parquet", schema=schema).is_direct
    own = {**schema, "categorical": {"other": {"num_rows": 10}}}
    assert TableRecipe(path=str(tmp_path), format="parquet", schema=own).is_direct


def test_an_integer_that_the_common_type_cannot_hold_is_named(tmp_path):
    for k, values in enumerate(([0.5, 1.0], [1, 2, 2**60 + 1, 4, 2**60 + 3])):
        rows = {"click": [0, 1, 0, 1, 0][: len(values)], "price": values}
        pq.write_table(pa.table(rows), tmp_path / f"part-{k}.parquet")
    schema = {"labels": {"click": {}}, "numeric": {"price": {}}}
    recipe = TableRecipe(path=str(tmp_path), format="parquet", schema=schema)
    shown = (
        r"part-1\.parquet: row group 0, row 2: column 'price': Integer value 1152921504606846977"
    )
    with pytest.raises(DataError, match=shown):
        open_table(recipe, window_rows=100, prefetch=0)
