"""Values of columns are named as the files have them, whatever batches hold in their place."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.machine.cache_folder import cache_root
from runner.models.layers.sequences import single_ids

CITIES = ["red", "blue", "a/b=c", "unknown", "missing", "", "'quoted'", "100%", None, "once"]
SCHEMA = {
    "labels": ["click"],
    "groups": ["user"],
    "categorical": {
        "city": {"encode": "vocabulary", "min_count": 2},
        "number": {"encode": "vocabulary", "input": "integer"},
        "place": {"num_rows": 100},
        "hashed": {"column": "place", "encode": "hash", "num_rows": 7},
        "age": {"encode": "bucketise", "boundaries": [20, 30.5]},
        "hour": {"column": "at", "encode": "hour"},
        "weekday": {"column": "at", "encode": "weekday"},
    },
}


def rows() -> dict[str, list]:
    """Return columns; the last city occurs once, in the train split."""
    cities = [CITIES[n % 9] for n in range(90)] + ["once"]
    count = len(cities)
    return {
        "click": [n % 2 for n in range(count)],
        "user": [f"u{n % 3}" for n in range(count)],
        "city": cities,
        "number": [None if n % 5 == 4 else n % 5 * 10 - 10 for n in range(count)],
        "place": list(range(count)),  # of the row
        "age": [[None, 3.0, 20.0, 30.0, 99.0][n % 5] for n in range(count)],
        "at": [None if n % 4 == 3 else n % 4 * 86_400 + n % 24 * 3600 for n in range(count)],
    }


def open_rows(folder: Path, format_: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNNER_CACHE", str(folder / "cache"))
    table = pa.table({name: pa.array(values) for name, values in rows().items()})
    path = folder / f"rows.{format_}"
    if format_ == "csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    recipe = TableRecipe(format_, str(path), SCHEMA, split={"random": {"train": 1.0}})
    return open_table(recipe, window_rows=1000, prefetch=0)


def named(dataset, column: str) -> list[str]:
    """Return the name of each row's value, in the order of the file."""
    [batch] = dataset.batches("train", batch_size=1000)
    if column in dataset.schema.groups:
        values = batch.groups_BG[:, dataset.schema.groups.index(column)].tolist()
    else:
        values = single_ids(batch, column).tolist()
    names = dataset.name_values(column, sorted(set(values)))
    in_order = np.argsort(single_ids(batch, "place").numpy())
    return [names.get(values[at], str(values[at])) for at in in_order]


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_values_are_named_as_the_files_have_them(tmp_path, monkeypatch, format_):
    dataset, given = open_rows(tmp_path, format_, monkeypatch), rows()
    quoted = {"unknown": "'unknown'", "missing": "'missing'", "": "''", "'quoted'": "''quoted''"}
    quoted |= {None: "missing", "once": "unknown"}
    if format_ == "csv":  # in which an empty text is a missing value
        quoted[""] = "missing"
    assert named(dataset, "city") == [quoted.get(city, city) for city in given["city"]]
    for column in ("number", "place"):
        expected = ["missing" if value is None else str(value) for value in given[column]]
        assert named(dataset, column) == expected
    assert named(dataset, "user") == given["user"]
    buckets = {None: "missing", 3.0: "..20", 20.0: "20..30.5", 30.0: "20..30.5", 99.0: "30.5.."}
    assert named(dataset, "age") == [buckets[age] for age in given["age"]]
    hours = ["missing" if at is None else str(at // 3600 % 24) for at in given["at"]]
    assert named(dataset, "hour") == hours
    days = ["missing" if at is None else str((at // 86_400 + 3) % 7) for at in given["at"]]
    assert named(dataset, "weekday") == days
    assert set(named(dataset, "hashed")) <= {str(row) for row in range(7)}


def test_names_stand_in_the_order_of_texts_and_of_numbers(tmp_path, monkeypatch):
    dataset = open_rows(tmp_path, "parquet", monkeypatch)
    [batch] = dataset.batches("train", batch_size=1000)
    cities = dataset.name_values("city", sorted(set(single_ids(batch, "city").tolist())))
    special, texts = [*cities.values()][:2], [*cities.values()][2:]
    assert (special, texts) == (["unknown", "missing"], sorted(texts))
    numbers = dataset.name_values("number", [2, 3, 4, 5])
    assert [*numbers.values()][2:] == ["-10", "0", "10", "20"]


def test_a_default_behind_all_values_is_named_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    columns = {"click": [0, 1, 0], "city": ["red", None, "blue"], "age": [1.0, None, 3.0]}
    pq.write_table(pa.table({**columns, "at": [0, None, 3600]}), tmp_path / "x.parquet")
    categorical = {
        "city": {"encode": "vocabulary", "default": 7},
        "age": {"encode": "bucketise", "boundaries": [2], "default": 5},
        "at": {"encode": "hour", "default": 30},
    }
    schema = {"labels": ["click"], "categorical": categorical}
    recipe = TableRecipe("parquet", str(tmp_path / "x.parquet"), schema, mix=False)
    data = open_table(recipe, window_rows=1000, prefetch=0)
    assert data.name_values("city", [2, 3, 7]) == {
        **{0: "unknown", 1: "missing", 7: "missing"},
        **{2: "red", 3: "blue"},
    }
    assert data.name_values("age", [0, 5]) == {0: "..2", 5: "missing"}
    assert data.name_values("at", [0, 30]) == {30: "missing"}


def test_a_text_whose_file_is_gone_is_its_hash_and_that_is_said(tmp_path, monkeypatch, caplog):
    dataset = open_rows(tmp_path, "parquet", monkeypatch)
    (tmp_path / "rows.parquet").unlink()
    with caplog.at_level(logging.WARNING, "runner"):
        name = dataset.name_values("city", [2])[2]
    assert int(name) and "city: its texts cannot be read" in caplog.text
    assert cache_root().is_dir()
