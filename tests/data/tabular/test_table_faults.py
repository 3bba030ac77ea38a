"""Bad rows, files and declarations of a user's table: named to the row, or skipped and counted."""

from __future__ import annotations

import os
import pickle
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.cli.data_serve import dataset_overrides
from runner.data.files.file_columns import check_same_schema
from runner.data.files.file_list import DataFile, find_files
from runner.data.files.read_files import open_parquet_file
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError, UserError
from tests.data.clicks import clicks, open_dataset, recipe_settings, write_parquet

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 200


def changed(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    type_ = pa.float64() if isinstance(value, float) else table[column].type
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(values, type_))


BAD = [
    ("click", 2, "value 2: allowed is 0 or 1"),
    ("click", -1, "value -1"),
    ("click", None, "the label is missing"),
    ("click", float("nan"), "the label is missing"),
    ("rating", float("inf"), "value inf: allowed is a finite number"),
    ("importance", -0.5, "a weight is finite and not negative"),
    ("importance", None, "a weight is finite"),
    ("price", float("inf"), "not finite"),
    ("age", float("-inf"), "not finite"),
    ("user", -1, "its table has the rows 0 to 99"),
    ("user", 100, "value 100"),
    ("user", 2**63 - 1, "value 9223372036854775807"),
    ("user", None, "missing and has no default"),
    ("user", 3.5, "value 3.5: not an integer"),
    ("user", 2.0**60, "the last digits of whole numbers above 2**53 are lost where the column is"),
    ("user", float("nan"), "missing and has no default"),
    ("history", [3, 40], "value 40"),
    ("history", [None], "missing"),
    ("tag_weights", [1.0] * 7, "7 values, but"),
]


@pytest.mark.parametrize(("column", "value", "shown"), BAD)
def test_a_bad_value_is_named_to_the_row_or_skipped_in_its_place(tmp_path, column, value, shown):
    path = write_parquet(tmp_path / "x", changed(clicks(ROWS), column, 150, value), 2)
    with pytest.raises(DataError) as caught:
        open_dataset(path=path)
    assert f"part-1.parquet: row group 0, row 50, column {column!r}" in str(caught.value)
    assert shown in str(caught.value)
    data = open_dataset(path=path, on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 1
    assert f"row 50, column {column!r}" in data.bad_rows["examples"][0]
    batch = next(data.batches("train", batch_size=ROWS))
    assert np.flatnonzero(batch.weights_B == 0).tolist() == [150]
    assert batch.dense_BD.isfinite().all() and batch.labels_BT.isfinite().all()
    assert batch.rows_B.tolist() == list(range(ROWS))


def test_more_bad_rows_than_allowed_are_an_error(tmp_path):
    table = clicks(ROWS)
    for row in range(5):
        table = changed(table, "click", row * 7, 3)
    path = write_parquet(tmp_path / "x", table)
    assert open_dataset(path=path, on_bad_rows="skip", max_bad_rows=5).bad_rows["count"] == 5
    with pytest.raises(DataError, match=r"more than dataset\.max_bad_rows=4 .* row 28"):
        open_dataset(path=path, on_bad_rows="skip", max_bad_rows=4)


def test_a_broken_row_group_is_named_or_skipped(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(clicks(ROWS), path, row_group_size=50, write_page_checksum=True)
    metadata = pq.ParquetFile(path).metadata
    names = metadata.schema.to_arrow_schema().names
    raw = bytearray(path.read_bytes())
    raw[metadata.row_group(2).column(names.index("rating")).data_page_offset + 80] ^= 4
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"x\.parquet: row group 2: .*CRC"):
        open_dataset(path=str(path))
    data = open_dataset(path=str(path), on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 50
    batch = next(data.batches("train", batch_size=ROWS))
    assert np.flatnonzero(batch.weights_B == 0).tolist() == list(range(100, 150))


TEXT = {
    "labels": {"y": {}},
    "numeric": {"x": {}},
    "categorical": {"a": {"encode": "vocabulary"}, "n": {}},
}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("1,abc,q,3", r"column 'x': Row #4|'x'.*abc"),
        ("7,1.5,q,3", r"x\.csv: line 4, column 'y': value 7"),
        ("1,1.5,q,3.5", "'n'.*3.5"),
        ("1,1.5,q", "Expected 4 columns, got 3"),
        ("1,,q,3", r"line 4, column 'x': is missing and has no default"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path, line, shown):
    lines = ["y,x,a,n", "0,1.0,p,1", "1,2.0,q,2", line, "0,3.0,p,3", "1,4.0,p,4"]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    path = str(tmp_path / "x.csv")
    with pytest.raises(DataError, match=shown):
        open_dataset(path=path, format="csv", schema=TEXT)
    data = open_dataset(path=path, format="csv", schema=TEXT, on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 1
    assert data.num_rows == {"train": 5}
    batch = next(data.batches("train", batch_size=5))
    assert sorted(batch.weights_B.tolist()) == [0, 1, 1, 1, 1]
    good = batch.dense_BD[batch.weights_B > 0, 0].tolist()
    assert good == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (
            lambda t: t.rename_columns(["usr" if n == "user" else n for n in t.column_names]),
            r"part-1\.parquet: no column 'user'; nearest: 'usr'",
        ),
        (
            lambda t: t.set_column(6, "user", t["user"].cast(pa.string())),
            r"part-1\.parquet: column 'user' has type string, but int64 in .*part-0",
        ),
        (lambda t: t.append_column("user", t["user"]), "2 columns are called 'user'; give each"),
    ],
)
def test_files_that_differ_are_found_before_anything_is_read(tmp_path, change, shown, direct):
    path = write_parquet(tmp_path / "x", clicks(40), 2)
    pq.write_table(change(clicks(20)), tmp_path / "x" / "part-1.parquet")
    plain = {"labels": {"click": {}}, "categorical": {"user": {"num_rows": 100}}}
    with pytest.raises(DataError, match=shown):
        TableRecipe(**recipe_settings(path=path, **({"schema": plain} if direct else {}))).check()


def test_an_extra_column_in_one_file_does_no_harm(tmp_path):
    path = write_parquet(tmp_path / "x", clicks(40), 2)
    more = clicks(20).append_column("more", pa.array(range(20)))
    pq.write_table(more, tmp_path / "x" / "part-1.parquet")
    assert open_dataset(path=path).num_rows == {"train": 40}


@pytest.mark.parametrize(
    ("role", "declared", "shown"),
    [
        ("numeric", {"city": {}}, "'city' has type string, expected a number"),
        ("numeric", {"history": {}}, "expected a number"),
        ("categorical", {"history": {"encode": "vocabulary"}}, "expected an integer or a text"),
        ("categorical", {"user": {"list": True}}, "expected a list; a text needs a separator"),
        ("categorical", {"user": {"separator": "|"}}, "expected a text"),
        ("categorical", {"city": {"encode": "bucketise", "buckets": 3}}, "expected a number"),
    ],
)
def test_a_type_that_does_not_fit_its_role_is_refused(tmp_path, role, declared, shown):
    path = write_parquet(tmp_path / "x", clicks(20))
    schema = {"labels": {"click": {}}, role: declared}
    with pytest.raises(DataError, match=shown):
        TableRecipe(**recipe_settings(path=path, schema=schema)).check()


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({}, r"dataset\.schema\.labels: no label"),
        ({"labels": ["y"], "numerics": {}}, r"schema\.numerics: .*nearest: 'numeric'"),
        ({"labels": ["y"], "numeric": {"x": {"log1": True}}}, r"numeric\.x\.log1: .*'log1p'"),
        ({"labels": ["y"], "numeric": {"x": {"log1p": 3}}}, r"log1p=3: expected true or false"),
        ({"labels": ["y"], "categorical": {"x": {"encode": "hsh"}}}, r"encode='hsh'.*'hash'"),
        (
            {"labels": ["y"], "categorical": {"x": {"encode": "hash"}}},
            r"x\.num_rows is not set: hash needs",
        ),
        ({"labels": ["y"], "categorical": {"x": {"cross": ["a"]}}}, "x.num_rows: a cross"),
        ({"labels": ["y"], "sequences": {"x": {}}}, r"sequences\.x\.max_length is not set"),
        ({"labels": ["y"], "numeric": {"y": {}}}, "'y' is declared twice"),
        ({"labels": ["y"], "categorical": {"x": {"encode": "bucketise"}}}, "boundaries"),
        (
            {"labels": ["y"], "categorical": {"x": {"encode": "bucketise", "boundaries": [2, 1]}}},
            "ascending",
        ),
    ],
)
def test_a_wrong_declaration_names_its_key(schema, shown):
    with pytest.raises(ConfigError, match=shown):
        _ = TableRecipe(**recipe_settings(schema=schema)).declared


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"path": "nowhere"}, r"dataset\.path=nowhere: no such path"),
        ({"path": "*.nothing"}, "no file matches"),
        ({"path": "memry://x"}, "nearest: 'memory'"),
        ({"path": None}, r"dataset\.path is not set"),
        ({"schema": None}, "--out schema.yaml"),
        ({"schema": "clicks.yml"}, r"dataset\.schema=clicks\.yml: no such file"),
        ({"on_bad_rows": "ignore"}, "one of error, skip"),
        ({"split": {"random": {"train": 0.5}}}, "add up to 0.5"),
        ({"split": {"by": "x"}}, "expected one of random"),
        ({"split": {"time": "time", "tset": "7d"}}, r"split\.tset: .*nearest: 'test'"),
        ({"split": {"time": "time", "test": "7 days"}}, "a time such as 7d"),
        ({"split": {"time": "tme", "test": "7d"}}, "no column 'tme'; nearest: 'time'"),
        ({"split": {"time": "city", "test": "7d"}}, "'city' has type string, expected a time"),
        ({"split": {"column": "fold", "test": ["1"]}}, r"split\.train is not set"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, monkeypatch, settings, shown):
    monkeypatch.chdir(tmp_path)
    path = write_parquet(tmp_path / "x", clicks(20))
    with pytest.raises(UserError, match=shown):
        TableRecipe(**recipe_settings(**{"path": path, **settings})).check()


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_cut_file_is_named(tmp_path, size):
    write_parquet(tmp_path / "x", clicks(50))
    path = tmp_path / "x" / "part-0.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"part-0\.parquet: not a readable Parquet file"):
        open_dataset(path=str(path))


def test_a_file_of_another_format_is_named_with_the_option_that_reads_it(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,click\n1,0\n")
    with pytest.raises(DataError, match=r"x\.csv: not a readable Parquet file .*dataset=csv"):
        open_parquet_file(DataFile(str(path))).__enter__()


def test_a_missing_column_is_named_with_the_file_that_declares_it(tmp_path):
    schemas = {"a.csv": pa.schema([("age", pa.int64())])}
    with pytest.raises(DataError, match=r"a\.csv: no column 'agee', which b\.yaml declares; near"):
        check_same_schema(schemas, ["agee"], lambda column: "b.yaml declares")


def test_a_column_that_is_read_itself_is_no_nearest_one(tmp_path):
    schemas = {"a.csv": pa.schema([("device", pa.int64())])}
    with pytest.raises(DataError, match=r"a\.csv: no column 'price'$"):
        check_same_schema(schemas, ["device", "price"])


def test_a_pipe_is_told_as_one(tmp_path):
    os.mkfifo(tmp_path / "stdin")
    with pytest.raises(DataError, match=r"INPUT=.*stdin: is a pipe or a device.*file first"):
        find_files(str(tmp_path / "stdin"), "csv", key="INPUT")


def test_a_schema_of_csv_files_chooses_their_dataset_for_the_verbs_that_prepare(tmp_path):
    schema = tmp_path / "clicks.yaml"
    schema.write_text("path: logs/day=1.csv.gz\nlabels: [click]\n")
    assert dataset_overrides(["seed=1"], schema)[0] == "dataset=csv"
    assert dataset_overrides(["dataset=tsv"], schema)[0] == "dataset=tsv"
    schema.write_text("labels: [click]\n")
    assert dataset_overrides([], schema)[0] == "dataset=parquet"


def test_a_file_without_rows_and_an_empty_split_are_named(tmp_path):
    empty = write_parquet(tmp_path / "x", clicks(5).slice(0, 0))
    with pytest.raises(DataError, match=r"part-0\.parquet: has no rows"):
        open_dataset(path=empty)
    path = write_parquet(tmp_path / "y", clicks(5))
    split = {"column": "fold", "train": ["0", "1"], "test": ["9"]}
    with pytest.raises(DataError, match=r"the test split has no rows \(.*`split`"):
        open_dataset(path=path, split=split)
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(DataError, match=r"e\.csv: has no rows"):
        open_dataset(path=str(tmp_path / "e.csv"), format="csv", schema=TEXT)
    (tmp_path / "h.csv").write_text("y,x,a,n\n")
    with pytest.raises(DataError, match=r"the train split has no rows: .*h\.csv; name a file"):
        open_dataset(path=str(tmp_path / "h.csv"), format="csv", schema=TEXT)


@pytest.mark.parametrize("rewrite", ["auto", "always"])
def test_an_empty_part_is_passed_over_where_others_have_rows(tmp_path, rewrite):
    path = write_parquet(tmp_path / "x", clicks(50))
    alone = open_dataset(path=path, rewrite=rewrite)
    empty = clicks(5).slice(0, 0).drop(["age"])  # what it has is not asked
    pq.write_table(empty, tmp_path / "x" / "a.parquet")
    data = open_dataset(path=path, rewrite=rewrite)
    assert data.num_rows == alone.num_rows == {"train": 50}
    found, expected = (next(d.batches("train", batch_size=50)).dense_BD for d in (data, alone))
    assert found.sort(0).values.equal(expected.sort(0).values)
    hints = Hints(labels=("click",))
    assert "age" in {f.name for f, _ in propose_schema(path, hints=hints).columns}
    (tmp_path / "x" / "b.parquet").write_bytes(b"")  # damaged: a writer leaves a footer
    for read in (open_dataset, partial(propose_schema, hints=hints)):
        with pytest.raises(DataError, match=r"b\.parquet: not a readable Parquet file"):
            read(path=path)


@pytest.mark.parametrize("content", ["", "t,y,age\n"])
def test_a_text_part_without_rows_does_not_tell_the_types(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    (tmp_path / "b.csv").write_text("t,y,age\n2024-01-01 05:00:00,1,2\n2024-01-02 06:00:00,0,3\n")
    schema = {
        "labels": ["y"],
        "numeric": ["age"],
        "categorical": {"hour": {"column": "t", "encode": "hour"}},
    }
    data = open_dataset(path=str(tmp_path), format="csv", schema=schema)
    batch = next(data.batches("train", batch_size=2))
    assert sorted(batch.sparse["hour"].values().tolist()) == [5, 6]
    assert propose_schema(str(tmp_path), hints=Hints(labels=("y",))).format == "csv"


def test_out_of_range_may_become_the_default(tmp_path):
    path = write_parquet(tmp_path / "x", changed(clicks(ROWS), "user", 3, 100))
    schema = {
        "labels": ["click"],
        "categorical": {"user": {"num_rows": 100, "out_of_range": "default", "default": 7}},
    }
    batch = next(open_dataset(path=path, schema=schema).batches("train", batch_size=ROWS))
    users = clicks(ROWS)["user"].to_pylist()
    users[3] = 7
    assert sorted(batch.sparse["user"].values().tolist()) == sorted(users)


def test_learning_leaves_bad_rows_out(tmp_path):
    table = changed(changed(clicks(ROWS), "age", 3, float("inf")), "age", 4, 1e300)
    data = open_dataset(path=write_parquet(tmp_path / "x", table), on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 2
    assert data.schema.dense == ("price", "age")
    good = next(data.batches("train", batch_size=ROWS)).dense_BD[:, 1]
    assert good.abs().max() < 5


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"PAR1 and more", "is a Parquet file: dataset=parquet"),
        ("y,c\n1,2\n".encode("utf-16"), "has bytes of value 0; if it is UTF-16, iconv -f UTF-16"),
        (b"y,c\n1,caf\xe9\n", "byte 0xe9 at 9; its encoding is not known: iconv -f cp1252"),
        (b"y,c\n1,caf\xe9\n", "right for Western, and -f cp1250 for Central European texts"),
        ("y,c\n1,нет\n2,да\n".encode("cp1251"), "not known: iconv -f cp1251 -t utf-8"),
        ("y,c\n1,中文字\n".encode("gb18030"), "for Russian, and -f gb18030 for Chinese texts"),
        (b"y,c\n1,\x93caf\xe9\x94\n", "UTF-8: byte 0x93 at 6; its encoding is not known"),
        (pickle.dumps([0, "a"]), "is a pickle: write its table as Parquet"),
        (b"y;c\n1;2\n", """; its names stand between ';', which 'dataset.delimiter=";"' says"""),
        (b"y\tc\n1\t2\n", r"""'\t', which $'dataset.delimiter="\t"' says"""),
        (b"y,c\n1,\0\n", "no text in UTF-8: it has bytes of value 0; write its table as"),
        (b"\n\n", "has no rows, and no line with names"),
    ],
)
def test_a_file_that_is_no_text_is_told_in_our_own_words(tmp_path, content, told):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    schema = {"labels": {"y": {}}, "categorical": {"c": {"encode": "hash", "num_rows": 9}}}
    with pytest.raises(UserError) as refused:
        TableRecipe(format="csv", path=str(path), schema=schema).check()
    assert str(refused.value).startswith(f"{path}: ") and told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_parquet_file_is_closed_once_it_is_read(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    handle = (tmp_path / "a.parquet").open("rb")
    monkeypatch.setattr(DataFile, "open", lambda self: handle)
    with open_parquet_file(DataFile("a.parquet")) as opened:
        assert opened.read().num_rows == 1
    assert handle.closed
