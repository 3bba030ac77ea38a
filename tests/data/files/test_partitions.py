"""Columns out of folders such as `dt=2026-01-01`: the rows are those that Arrow and pandas read."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from runner.data.files.file_list import find_files
from runner.data.prepare.engine import InProcess
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table import prepare_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError
from tests.conftest import Zygote
from tests.data.clicks import recipe_settings
from tests.data.files.test_formats import write_arrow, write_avro, write_orc
from tests.data.prepare.test_prepare import Backwards, prepared_files, small_parts  # noqa: F401
from tests.serving.scene import SETTINGS

NAMES = {"ios": "ios", "and roid": "and%20roid", None: "__HIVE_DEFAULT_PARTITION__"}
SCHEMA = {
    "labels": ["click"],
    "numeric": {"price": {}, "hour": {}},
    "categorical": {
        "device": {"encode": "vocabulary", "default": 0},
        "hour_id": {"column": "hour", "encode": "vocabulary"},
    },
    "carried": ["device"],
}


def write_jsonl(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


WRITERS = {
    "parquet": lambda path, table: pq.write_table(table, path, row_group_size=30),
    "csv": lambda path, table: pacsv.write_csv(table, path),
    "tsv": lambda path, table: pacsv.write_csv(table, path, pacsv.WriteOptions(delimiter="\t")),
    "jsonl": write_jsonl,
    "arrow": write_arrow,
    "orc": write_orc,
    "avro": write_avro,
}


def rows(num_rows: int = 400) -> pd.DataFrame:
    """Rows in the order of their files, whose click depends on the device."""
    rng = np.random.default_rng(3)
    device = rng.integers(0, 3, num_rows)
    found = {
        "price": rng.integers(1, 9, num_rows) / 4,
        "click": (rng.random(num_rows) < 0.1 + 0.4 * device).astype(int),
        "device": np.array(["ios", "and roid", None], object)[device],
        "hour": rng.integers(8, 11, num_rows),
    }
    frame = pd.DataFrame(found)
    order = frame["device"].map(NAMES, na_action=None).fillna(NAMES[None])
    return frame.iloc[np.lexsort((frame["hour"], order))].reset_index(drop=True)


def write(root: Path, format_: str = "parquet", sign: str = "=") -> pd.DataFrame:
    """Write rows into folders `device=ios/hour=08`; with another sign, files have all columns."""
    frame = rows()
    for (device, hour), own in frame.groupby(["device", "hour"], dropna=False, sort=False):
        name = NAMES[None if pd.isna(device) else device]
        folder = root / f"device{sign}{name}" / f"hour{sign}{hour:02}"
        folder.mkdir(parents=True)
        columns = ["price", "click", *([] if sign == "=" else ["device", "hour"])]
        table = pa.Table.from_pandas(own[columns], preserve_index=False)
        if "device" in columns:
            table = table.set_column(2, "device", table["device"].cast(pa.string()))
        WRITERS[format_](folder / f"part-0.{format_}", table)
    return frame


def recipe(path: object, format_: str = "parquet", **more: object) -> TableRecipe:
    given = {"format": format_, "path": path, "schema": SCHEMA}
    return TableRecipe(**recipe_settings(**given | more))


def read(table: TableRecipe, columns: list[str]) -> pd.DataFrame:
    chunks = [c.table for f in table.files["train"] for c in table.read_chunks(f, columns)]
    return pa.concat_tables(chunks).to_pandas()


@pytest.mark.parametrize("format_", WRITERS)
def test_rows_have_the_values_of_their_folders_in_every_format(tmp_path, format_):
    frame = write(tmp_path, format_)
    table = recipe(str(tmp_path), format_)
    for columns in (["device", "click", "hour", "price"], ["hour", "device"], ["click"]):
        pd.testing.assert_frame_equal(
            read(table, columns), frame[columns], check_dtype=False, check_column_type=False
        )
    assert table.schemas[str(table.files["train"][0])].field("hour").type == pa.int64()
    counts = [c.num_rows for file in table.files["train"] for c in table.read_chunks(file, [])]
    assert sum(counts) == len(frame)
    if format_ in ("parquet", "arrow", "orc"):
        read_by_arrow = pads.dataset(tmp_path, format=format_, partitioning="hive").to_table()
        columns, order = ["device", "hour", "click", "price"], ["device", "hour", "price", "click"]
        pd.testing.assert_frame_equal(
            read(table, columns).sort_values(order, ignore_index=True),
            read_by_arrow.select(columns).to_pandas().sort_values(order, ignore_index=True),
            check_dtype=False,
        )


def test_the_folders_that_count_are_those_of_arrow(tmp_path):
    write(tmp_path / "top=1" / "hive")
    hive = tmp_path / "top=1" / "hive"
    files = sorted(str(file) for file in hive.glob("device=ios/*/*.parquet"))
    for given, arrow in (
        (str(hive), str(hive)),
        (str(hive / "device=ios"), str(hive / "device=ios")),
        (f"{hive}/device=ios/*/*.parquet", files),
        (files, files),
        (files[0], files[:1]),
    ):
        found = {name for f in find_files(given, "parquet", key="path") for name in f.partitions}
        schema = pads.dataset(arrow, partitioning="hive").schema
        assert found == set(schema.names) - {"price", "click"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-7"], [1, -7]),
        (["02", "__HIVE_DEFAULT_PARTITION__"], [2, None]),
        (["02", "ab"], ["02", "ab"]),
        (["1.5", "2"], ["1.5", "2"]),
        (["", "2"], ["", "2"]),
        (["a%2Fb%3D", "Köln=x"], ["a/b=", "Köln=x"]),
        (["9" * 19, "1"], ["9" * 19, "1"]),
    ],
)
def test_values_are_whole_numbers_or_texts(tmp_path, values, expected):
    for value in values:
        (tmp_path / f"a b={value}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"a b={value}" / "x.parquet")
    schema = {"labels": ["x"], "categorical": {"a b": {"encode": "hash", "num_rows": 5}}}
    table = recipe(str(tmp_path), schema=schema)
    chunks = [chunk for file in table.files["train"] for chunk in table.read_chunks(file, ["a b"])]
    found = {value for chunk in chunks for value in chunk.table["a b"].to_pylist()}
    assert found == set(expected)


def test_a_store_and_a_memory_are_folders_like_others():
    import fsspec

    memory = fsspec.filesystem("memory")
    for device in ("ios", "web"):
        with memory.open(f"/parted/up=1/clicks/device={device}/x.csv", "wb") as file:
            file.write(b"y\n1\n")
    url = "memory://parted/up=1/clicks"
    for given, expected in ((url, {}), (f"{url}/*/*.csv", {"up": "1"})):
        files = find_files(given, "csv", key="path")
        assert [f.partitions for f in files] == [
            {**expected, "device": "ios"},
            {**expected, "device": "web"},
        ]


def test_a_column_of_the_files_wins_over_a_folder_of_its_name(tmp_path):
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"x": [1, 2], "click": [0, 1]}), tmp_path / "x=5" / "a.parquet")
    schema = {"labels": ["click"], "numeric": {"x": {}}}
    table = recipe(str(tmp_path), schema=schema)
    assert read(table, ["x"])["x"].tolist() == [1, 2]
    assert table.is_direct
    assert "partitions" not in table.content_fields()


def test_a_file_without_the_folder_of_others_is_an_error_that_names_both(tmp_path):
    write(tmp_path)
    pq.write_table(pa.table({"price": [1.0], "click": [1]}), tmp_path / "a.parquet")
    problem = (
        r"/a.parquet: no column '(device|hour)', and no folder \1=\.\.\. in its path, as .*=08"
    )
    with pytest.raises(DataError, match=problem):
        recipe(str(tmp_path)).check()
    with pytest.raises(DataError, match=problem):
        propose_schema(str(tmp_path))
    glob = r"of a glob all in its path: .*/device=ios/\*\*/\*\.parquet$"
    with pytest.raises(DataError, match=glob):
        recipe(str(tmp_path / "device=ios")).check()
    assert recipe(f"{tmp_path}/device=ios/**/*.parquet").check() is None


def test_only_folders_that_are_read_are_part_of_the_content(tmp_path):
    for up in ("top=1", "top"):
        write(tmp_path / up)
    by_glob, by_folder = (
        recipe(f"{tmp_path}/top=1/*/*/*.parquet").content_fields(),
        recipe(str(tmp_path / "top")).content_fields(),
    )
    assert by_glob == by_folder
    assert by_glob["partitions"]["train"][0] == {"device": None, "hour": "08"}
    (tmp_path / "top" / "device=ios").rename(tmp_path / "top" / "device=web")
    assert recipe(str(tmp_path / "top")).content_fields() != by_folder
    plain = {"labels": ["click"], "numeric": {"price": {}}}
    unused = recipe(str(tmp_path / "top"), schema=plain)
    assert unused.is_direct and "partitions" not in unused.content_fields()
    used = recipe(str(tmp_path / "top"), schema={**plain, "carried": ["hour"]})
    assert not used.is_direct and used.content_fields()["partitions"]


@pytest.mark.long
@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("engine", [InProcess(), Backwards()], ids=["one", "several"])
def test_prepared_files_are_those_of_rows_that_have_the_columns(
    tmp_path, monkeypatch, format_, engine, request
):
    request.getfixturevalue("small_parts")
    for module in ("files.read_text", "files.read_json_lines", "tabular.text_parts"):
        monkeypatch.setattr(f"runner.data.{module}.BLOCK_BYTES", 100)
    write(tmp_path / "hive", format_)
    write(tmp_path / "plain", format_, sign="-")
    split = {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}
    hive, plain = (
        prepared_files(
            recipe(str(tmp_path / name), format_, split=split, mix=False),
            tmp_path / f"{name}_cache",
            monkeypatch,
            own_engine,
        )
        for name, own_engine in (("hive", engine), ("plain", InProcess()))
    )
    assert len(hive) > 3
    # of CSV, a column of ids is read as texts; the folders' are integers
    fitted = {"learnt.json", "prepared.json"} if format_ == "csv" else set()
    assert {n: b for n, b in hive.items() if n not in fitted} == {
        n: b for n, b in plain.items() if n not in fitted
    }


@pytest.mark.long
@pytest.mark.parametrize("format_", ["parquet", "csv", "avro"])
def test_a_schema_is_proposed_of_all_folders_with_a_split_by_their_dates(
    tmp_path, monkeypatch, format_
):
    rng = np.random.default_rng(0)
    days = [str(date(2026, 1, 1) + timedelta(days=n)) for n in range(150)]
    for day in days:
        (tmp_path / "hive" / f"dt={day}").mkdir(parents=True)
        item, click = rng.integers(0, 9, 200), rng.integers(0, 2, 200)
        table = pa.table({"item_id": item, "click": click})
        WRITERS[format_](tmp_path / "hive" / f"dt={day}" / f"x.{format_}", table)
    monkeypatch.setattr("runner.data.proposal.columns.sample_rows.SAMPLE_ROWS", 1000)
    found = propose_schema(str(tmp_path / "hive"), hints=Hints(labels=("click",)))
    [(column, role)] = [(f, role) for f, role in found.columns if f.name == "dt"]
    assert column.type == pa.string() and column.time_form == "text"
    assert 50 <= column.num_distinct <= 101 and column.num_rows <= 1000
    assert role.reason == "a time"
    assert found.places["split"] == {"time": "dt", "validation": 0.1, "test": 0.1}
    declared = {"labels": ["click"], "categorical": {"item_id": {"num_rows": 9}}, "carried": ["dt"]}
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    table = recipe(str(tmp_path / "hive"), format_, schema=declared, split=found.places["split"])
    table.check()
    folder, prepared = prepare_table(table)
    carried = {
        split: {
            v
            for n in names
            for v in pa.ipc.open_file(folder / n).read_all()["carried dt"].to_pylist()
        }
        for split, names in prepared.splits.items()
    }
    assert carried == {
        "train": set(days[:120]),
        "validation": set(days[120:135]),
        "test": set(days[135:]),
    }


@pytest.mark.long
def test_predictions_have_the_columns_of_folders_and_know_their_ids(
    runner: Zygote, tmp_path, monkeypatch
):
    """`code=02` is the text 02 where another folder is `code=ab`, and the integer 2 elsewhere."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for number, code in enumerate(("02", "03", "ab")):
        for dt in ("2026-01-01", "2026-01-02"):
            folder = tmp_path / "hive" / f"dt={dt}" / f"code={code}" / f"shop={number}"
            folder.mkdir(parents=True)
            click = (rng.random(200) < 0.1 + 0.4 * number).astype(int)
            pacsv.write_csv(pa.table({"n": range(200), "click": click}), folder / "x.csv")
    schema = {
        "labels": ["click"],
        "numeric": {"n": {"standardise": True}},
        "categorical": {"code": {"encode": "vocabulary"}, "shop": {"encode": "vocabulary"}},
        "split": {"random": {"train": 0.8, "validation": 0.2}},
    }
    (tmp_path / "s.yaml").write_text(json.dumps({**schema, "path": "hive"}))
    words = (*SETTINGS[1:], "dataset=csv", f"dataset.schema={tmp_path}/s.yaml")
    runner.run(*words, f"hydra.run.dir={tmp_path}/run").check()
    scored = {}
    for name, given in (("all", "hive"), ("one", "hive/*/code=02/*/*.csv")):
        out = tmp_path / name
        keep = ("--keep", "dt,code,shop,click", "--out", str(out))
        runner.run("predict", str(tmp_path / "run"), str(tmp_path / given), *keep).check()
        scored[name] = pd.read_parquet(out)
    files = pads.dataset(tmp_path / "hive", format="csv", partitioning="hive").to_table()
    assert scored["all"]["shop"].dtype == np.int64
    for name in ("dt", "code", "shop"):
        assert scored["all"][name].value_counts().to_dict() == (
            files[name].to_pandas().value_counts().to_dict()
        )
    assert roc_auc_score(scored["all"]["click"].astype(int), scored["all"]["score_click"]) > 0.7
    pd.testing.assert_frame_equal(
        scored["all"].query("code == '02'").reset_index(drop=True), scored["one"]
    )
    (tmp_path / "hive/dt=2026-01-01").rename(tmp_path / "hive/dt=2025-12-31")
    again = runner.run("predict", str(tmp_path / "run"), str(tmp_path / given), *keep)
    assert again.code == 2 and "input: " in again.text
