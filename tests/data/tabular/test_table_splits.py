"""Splits of a table, fitted transforms, rewriting, and the schema verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as pafeather
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from runner.batch import DataPosition
from runner.cli.schema import schema as schema_verb
from runner.data.core.fitted import with_fitted_transforms
from runner.data.prepare.fingerprint import fingerprint
from runner.data.tabular import splits
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError, UserError
from tests.conftest import python
from tests.data.clicks import SCHEMA, clicks, open_dataset, recipe_settings, write_parquet
from tests.data.sets.synthetic_settings import dataset_settings

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 1000


@pytest.fixture
def path(tmp_path):
    return write_parquet(tmp_path / "x", clicks(ROWS), 4)


def ids(data, split):
    names = data.read_carried_columns(split, 0, data.num_rows[split])["id"].to_pylist()
    return {int(name[3:]) for name in names}


def test_random_splits_are_disjoint_whole_and_follow_split_seed(path):
    shares = {"random": {"train": 0.7, "validation": 0.2, "test": 0.1}}
    first, same, other = (open_dataset(path=path, split=shares, split_seed=s) for s in (0, 0, 1))
    parts = [ids(first, split) for split in ("train", "validation", "test")]
    assert set.union(*parts) == set(range(ROWS)) and sum(map(len, parts)) == ROWS
    assert [len(p) / ROWS for p in parts] == pytest.approx([0.7, 0.2, 0.1], abs=0.04)
    assert ids(same, "test") == parts[2] != ids(other, "test")


def test_a_random_split_is_independent_of_numbers_that_numpy_draws_from_the_same_seed(tmp_path):
    """Of a made-up table whose first numbers decide the label, one split would have all ones."""
    drawn = np.random.default_rng(0).random(ROWS)
    table = clicks(ROWS).append_column("drawn", pa.array(drawn))
    schema = {**SCHEMA, "carried": ["drawn"]}
    data = open_dataset(
        path=write_parquet(tmp_path / "x", table, 1),
        schema=schema,
        split={"random": {"train": 0.5, "validation": 0.5}},
    )
    halves = [
        data.read_carried_columns(split, 0, data.num_rows[split])["drawn"].to_numpy().mean()
        for split in ("train", "validation")
    ]
    assert halves == pytest.approx([0.5, 0.5], abs=0.06)  # 0.25 and 0.75 of the same numbers


def test_a_split_by_column(path, capsys):
    split = {"column": "fold", "train": [0, 1], "validation": 2, "test": ["4"]}
    data = open_dataset(path=path, split=split)
    assert ids(data, "train") == {n for n in range(ROWS) if n % 5 in (0, 1)}
    assert ids(data, "validation") == set(range(2, ROWS, 5))
    assert ids(data, "test") == set(range(4, ROWS, 5))
    told = "200 rows are in no split and left out: the values that `split` lists lack theirs ('3')"
    assert told in capsys.readouterr().err
    open_dataset(path=path, split=split)  # from the cache
    assert told in capsys.readouterr().err


def test_a_split_by_groups_keeps_all_rows_of_a_value_together_in_any_file_and_format(tmp_path):
    group = pa.array([(n * 7919) % 200 for n in range(ROWS)])
    table = clicks(ROWS).append_column("query", group)
    split = {"group": "query", "train": 0.7, "validation": 0.2, "test": 0.1}
    names = ("train", "validation", "test")
    found = []
    for num_files, type_, seed in ((1, pa.int64(), 0), (3, pa.string(), 0), (1, pa.int64(), 1)):
        column = table.schema.get_field_index("query")
        typed = table.set_column(column, "query", group.cast(type_))
        path = write_parquet(tmp_path / f"{num_files}{type_}{seed}", typed, num_files)
        data = open_dataset(path=path, split=split, split_seed=seed)
        found.append([ids(data, name) for name in names])
    first, same, other = found
    assert first == same != other
    groups = [{(n * 7919) % 200 for n in rows} for rows in first]
    assert sum(map(len, groups)) == 200 and sum(map(len, first)) == ROWS
    assert [len(g) / 200 for g in groups] == pytest.approx([0.7, 0.2, 0.1], abs=0.1)


@pytest.mark.parametrize("written", [None, "True", "true", "TRUE"])
def test_a_split_by_true_and_false_takes_them_however_they_are_written(tmp_path, written):
    is_test = pa.array([n % 5 == 0 for n in range(ROWS)])
    if written:
        texts = [{"True": str, "true": str.lower, "TRUE": str.upper}[written]("False"), written]
        is_test = pa.array([texts[value] for value in is_test.to_pylist()])
    path = write_parquet(tmp_path / "b", clicks(ROWS).append_column("is_test", is_test), 2)
    data = open_dataset(path=path, split={"column": "is_test", "train": [False], "test": True})
    assert ids(data, "test") == set(range(0, ROWS, 5))
    assert data.num_rows == {"train": ROWS * 4 // 5, "test": ROWS // 5}


def test_a_split_whose_values_are_not_there_is_told_with_those_that_are(path):
    split = {"column": "fold", "train": ["zero"], "test": [1]}
    told = (
        r"the train split has no rows \(split column: fold, train: \['zero'\], test: \['1'\]\); "
        "the column has values that `split` does not list: '0', '2', '3', '4'"
    )
    with pytest.raises(DataError, match=told):
        open_dataset(path=path, split=split, schema={"labels": ["click"]})


@pytest.mark.parametrize(
    ("split", "bounds"),
    [
        ({"time": "time", "validation": 0.1, "test": 0.2}, (700, 800)),
        ({"time": "time", "validation": "24h", "test": "2d"}, (ROWS - 73, ROWS - 49)),
        ({"time": "time", "test": "48h"}, (ROWS - 49, ROWS - 49)),
    ],
)
def test_a_split_by_time_takes_the_last_of_it(path, split, bounds):
    data = open_dataset(path=path, split=split)
    low, high = bounds
    assert ids(data, "train") == set(range(low))
    assert ids(data, "test") == set(range(high, ROWS))
    if "validation" in split:
        assert ids(data, "validation") == set(range(low, high))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("times", ["timestamps", "texts"])
def test_rows_that_cannot_be_split_by_their_time_are_bad_rows(tmp_path, times, skip):
    table = clicks(ROWS)
    at = [None if i in (7, 40) else t for i, t in enumerate(table["time"].to_pylist())]
    column = pa.array(at, table["time"].type)
    if times == "texts":
        column = pa.array([f"{t}" if t else "soon" for t in column.to_pylist()])
    table = table.set_column(table.column_names.index("time"), "time", column)
    path = write_parquet(tmp_path / "bad", table, 1)
    settings = {"path": path, "split": {"time": "time", "validation": 0.2, "test": 0.2}}
    told = "is missing, so that" if times == "timestamps" else "value 'soon': no time in the form"
    if not skip:
        with pytest.raises(DataError, match=rf"row 7, column 'time': {told}.*on_bad_rows=skip"):
            open_dataset(**settings)
        return
    data = open_dataset(**settings, on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 2
    assert told in data.bad_rows["examples"][0]
    weights = torch.cat([b.weights_B for b in data.batches("train", batch_size=ROWS)])
    assert (weights == 0).sum() == 2  # they teach nothing, and are in no other split
    later = [b.weights_B for s in ("validation", "test") for b in data.batches(s, batch_size=ROWS)]
    assert torch.cat(later).min() > 0


def test_bytes_that_are_no_utf8_split_rows_like_any_text(tmp_path):
    rows = pa.table({"y": [0, 1] * 4, "id": range(8), "city": [b"Bern", b"Z\xfcrich"] * 4})
    schema = {"labels": {"y": {}}, "numeric": {"id": {}}}

    def opened(**split):
        settings = {"schema": schema, "split": split, "mix": False}
        return open_dataset(path=write_parquet(tmp_path / "x", rows, 1), **settings)

    data = opened(column="city", train=["Bern"], test=["Z\\xfcrich"])
    for split, own in (("train", [0, 2, 4, 6]), ("test", [1, 3, 5, 7])):
        [batch] = data.batches(split, batch_size=8)
        assert batch.dense_BD[:, 0].tolist() == own
    data = opened(group="city", train=0.5, test=0.5)
    assert sorted(data.num_rows.values()) == [4, 4]


@pytest.mark.parametrize("split", [{"group": "t", "train": 0.5, "test": 0.5}, {"column": "t"}])
def test_a_split_by_a_column_of_lists_is_refused_with_its_type(tmp_path, split):
    path = write_parquet(tmp_path / "x", pa.table({"y": [0, 1], "t": [[1], [2]]}), 1)
    split = split if "group" in split else {**split, "train": [1], "test": [2]}
    with pytest.raises(DataError, match="column 't' has type list<element: int64>, expected a num"):
        open_dataset(path=path, schema={"labels": {"y": {}}}, split=split)


def test_separate_paths_globs_and_urls(tmp_path, path):
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/far/away.parquet", "wb") as file:
        pq.write_table(clicks(30), file)
    data = open_dataset(
        path=f"{path}/part-[01].parquet",
        validation_path=[f"{path}/part-2.parquet"],
        test_path="memory://far/*.parquet",
    )
    assert data.num_rows == {"train": 500, "validation": 250, "test": 30}
    assert ids(data, "validation") == set(range(500, 750))


def test_statistics_are_those_of_the_train_split(path):
    split = {"column": "fold", "train": ["0"], "validation": ["1", "2", "3", "4"]}
    data = open_dataset(path=path, split=split)
    x = next(data.batches("train", batch_size=ROWS)).dense_BD[:, 1]
    assert x.mean().item() == pytest.approx(0, abs=1e-5)
    assert x.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_fitted_buckets_are_of_equal_size(path):
    levels = {"rating_level": {"column": "rating", "encode": "bucketise", "buckets": 4}}
    data = open_dataset(path=path, schema={"labels": ["click"], "categorical": levels})
    counts = next(data.batches("train", batch_size=ROWS)).sparse.values().bincount()
    assert counts[:4].tolist() == pytest.approx([250] * 4, abs=2)


def test_the_transforms_of_a_run_are_used_on_other_data(tmp_path, path):
    data = open_dataset(path=path)
    data.save_fitted_transforms(tmp_path / "run" / "data")
    kept = tmp_path / "run" / "data"
    # a dataset without the setting fits nothing
    assert with_fitted_transforms({"path": "ml-1m"}, kept) == {"path": "ml-1m"}
    settings = with_fitted_transforms({**recipe_settings(path=path), "learnt": None}, kept)
    assert settings["learnt"] == str(kept)
    again = open_dataset(**{k: v for k, v in settings.items() if k not in ("format", "schema")})
    assert again.indexes["train"].files == data.indexes["train"].files  # made once
    few = clicks(20, seed=5).set_column(7, "city", pa.array(["Rome", "Atlantis"] * 10))
    other = write_parquet(tmp_path / "y", few)
    new = open_dataset(path=other, learnt=settings["learnt"], mix=False)
    assert new.schema.sparse[1].num_rows == data.schema.sparse[1].num_rows
    old_batch = next(data.batches("train", batch_size=ROWS))
    cities = data.read_carried_columns("train", 0, ROWS)["city"].to_pylist()
    rome = int(old_batch.sparse["city"].values()[cities.index("Rome")])
    batch = next(new.batches("train", batch_size=20))
    assert batch.sparse["city"].values().tolist() == [rome, 0] * 10
    ages = np.array([30 if a is None else a for a in clicks(ROWS)["age"].to_pylist()])
    own = np.array([30 if a is None else a for a in few["age"].to_pylist()])
    wanted = (own - ages.mean()) / ages.std()
    np.testing.assert_allclose(batch.dense_BD[:, 1], wanted, rtol=1e-4, atol=1e-5)


PLAIN = {
    "labels": ["click"],
    "numeric": {"price": {"log1p": True, "clip": [0, None], "default": 0.0}},
    "categorical": {"user": {"num_rows": 100}},
    "carried": ["id"],
}


def test_plain_files_are_read_as_they_are_and_give_the_same_as_rewritten_ones(path):
    as_is = open_dataset(path=path, schema=PLAIN)
    rewritten = open_dataset(path=path, schema=PLAIN, rewrite="always", mix=False)
    assert "part-0.parquet" in str(as_is.indexes["train"].files[0])
    assert "part-0.parquet" not in str(rewritten.indexes["train"].files[0])
    one, two = (next(d.batches("train", batch_size=ROWS)) for d in (as_is, rewritten))
    assert one.dense_BD.equal(two.dense_BD)
    assert one.sparse.values().equal(two.sparse.values())
    assert as_is.read_carried_columns("train", 240, 260).equals(
        rewritten.read_carried_columns("train", 240, 260)
    )


def test_large_row_groups_are_cut_into_blocks_once(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.data.tabular.table_recipe.DIRECT_ROWS", 10_000)
    table = pa.table({"y": np.arange(20_000) % 2, "x": np.arange(20_000.0)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=20_000)
    schema = {"labels": ["y"], "numeric": ["x"]}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema)
    assert data.indexes["train"].rows_N.tolist() == [8192, 8192, 3616]
    x = next(data.batches("train", batch_size=20_000)).dense_BD[:, 0]
    assert sorted(x.tolist()) == table["x"].to_pylist()


def test_mixing_leaves_no_order_and_more_rows_than_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.data.prepare.shuffle.SHARD_ROWS", 300)
    monkeypatch.setattr("runner.data.prepare.engine.DEFAULT_TASK_BYTES", 20_000)
    data = open_dataset(path=write_parquet(tmp_path / "x", clicks(ROWS), 4))
    names = data.read_carried_columns("train", 0, ROWS)["id"].to_pylist()
    order = np.array([int(name[3:]) for name in names])
    assert sorted(order) == list(range(ROWS))
    assert abs(np.corrcoef(order, np.arange(ROWS))[0, 1]) < 0.12
    assert not list((tmp_path / "cache").rglob("parts*"))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parity("E13", "N9")
def test_workers_ranks_and_every_position_keep_the_order(path, prefetch, workers, world_size):
    """Resume at every step of an epoch, with lists and sequences."""
    recipe = TableRecipe(**recipe_settings(path=path))
    recipe.check()
    from runner.data.tabular.table import open_table

    data = open_table(recipe, window_rows=1, prefetch=prefetch, workers=workers)
    plain = open_table(recipe, window_rows=1, prefetch=0)
    whole = next(plain.batches("train", batch_size=ROWS, seed=4)).rows_B.tolist()

    def read(at):
        ranks = [
            data.batches(
                "train",
                batch_size=50 // world_size,
                seed=4,
                start=at,
                rank=r,
                world_size=world_size,
            )
            for r in range(world_size)
        ]
        return [list(together) for together in zip(*ranks, strict=True)]

    steps = read(DataPosition(0, 0))
    assert len(steps) == 20
    assert [n for step in steps for b in step for n in b.rows_B.tolist()] == whole
    for number, step in enumerate(steps[:-1]):
        rest = read(step[0].cursor)
        assert len(rest) == len(steps) - number - 1
        for one, two in zip(rest[0], steps[number + 1]):
            assert one.rows_B.equal(two.rows_B) and one.cursor == two.cursor
            assert one.sequences.values().equal(two.sequences.values())
            assert one.sparse.values().equal(two.sparse.values())


def test_the_fingerprint_follows_content_schema_and_split(path, tmp_path):
    def of(**changes):
        return fingerprint(
            dataset_settings("parquet", **{"path": path, "schema": SCHEMA, **changes})
        )

    was = of()
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    assert of(schema=str(tmp_path / "s.yaml")) == was
    assert of(prefetch=3, workers=2) == was
    shares = {"random": {"train": 0.9, "test": 0.1}}
    less = {**SCHEMA, "carried": []}
    others = [
        of(split=shares),
        of(split=shares, split_seed=1),
        of(schema=less),
        of(mix=False),
        of(on_bad_rows="skip"),
        of(path=f"{path}/part-0.parquet"),
        of(window_rows=5),
    ]
    assert len({was, *others}) == 8


def test_schema_proposes_what_can_be_read(tmp_path, path, capsys):
    out = tmp_path / "s.yaml"
    assert schema_verb([path, "--out", str(out)], ()) == 0
    shown = capsys.readouterr().out
    assert "price" in shown and "10." in shown and f"dataset.schema={out}" in shown
    proposed = yaml.safe_load(out.read_text())
    assert list(proposed["labels"]) == ["click"]
    assert proposed["categorical"]["words"]["separator"] == "|"
    assert proposed["categorical"]["city"]["encode"] == "vocabulary"
    assert proposed["numeric"]["age"]["default"] == pytest.approx(50, abs=5)
    assert proposed["groups"] == ["user"] and proposed["weight"] == "importance"
    assert proposed["carried"] == ["id"]
    assert proposed["split"] == {"time": "time", "validation": 0.1, "test": 0.1}
    data = open_dataset(path=None, schema=str(out))
    assert list(data.num_rows) == ["train", "validation", "test"]
    next(data.batches("train", batch_size=100, seed=0))
    with pytest.raises(UserError, match="exists already"):
        schema_verb([path, "--out", str(out)], ())


def test_schema_takes_the_paths_of_other_splits(tmp_path, path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    one, two = "~/x/part-0.parquet", f"{path}/part-1.parquet"  # a shell leaves --test=~ as it is
    out = str(tmp_path / "s.yaml")
    schema_verb([one, "--validation", two, "--test=~/x/part-1.parquet", "--out", out], ())
    proposed = yaml.safe_load(open(out))  # noqa: SIM115
    assert "split" not in proposed and proposed["path"] == f"{path}/part-0.parquet"
    assert proposed["validation_path"] == proposed["test_path"] == two
    data = open_dataset(path=None, schema=out)
    assert data.num_rows == {"train": 250, "validation": 250, "test": 250}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "name one path"),
        (["x", "--outt", "y"], "nearest: '--out'"),
        (["x", "--out"], "--out: needs a value"),
        (["nowhere"], "no such path"),
        (["x.parquet", "--columns", "a,b"], "--columns: are for text files; Parquet names its col"),
        (["x.arrow", "--columns", "a,b"], "--columns: are for text files; arrow names its columns"),
        (["x.csv", "--columns", "a,y,z"], "x.csv has these names; leave --columns out"),
        (["x.da*"], "x.dat: has no rows"),
        (["colons.csv"], "its columns stand between '::'; sed"),
        (["x.csv", "--label", "a", "--label", "y", "--positive", "b"], "goes with one --label; in"),
        (
            ["x.csv", "--label", "z"],
            "has 3 texts .*--positive VALUE says which is 1.*for classes, ",
        ),
        (["x.parquet", "--label", "none"], "none of the rows that were read has a value"),
        (["x.parquet", "--label", "pair"], "cannot be a label; name a column of numbers or texts"),
        (["x.csv", "--out", "x.csv/s.yaml"], "--out x.csv/s.yaml: cannot be written: "),
    ],
)
def test_wrong_words_of_schema_are_named(words, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"a": ["b", "c", "b"], "y": [0, 1, 0], "z": ["p", "q", "r"]})
    pacsv.write_csv(rows, "x.csv")
    pafeather.write_feather(rows, "x.arrow")
    nulls = pa.array([None] * 3, pa.string())
    more = rows.append_column("pair", [[[{"a": 1}]] * 3]).append_column("none", nulls)
    pq.write_table(more, "x.parquet")
    Path("x.dat").touch()
    Path("colons.csv").write_text("1::2\n3::4\n")
    with pytest.raises(UserError, match=shown):
        schema_verb(words, ())


TIMES = {"time": "time", "validation": 0.1, "test": 0.1}


@pytest.mark.parametrize(
    ("columns", "settings", "shown"),
    [
        (
            {},
            {"split": {"random": {"train": 0.8, "test": 0.2}}, "test_path": "x"},
            "dataset.split gives rows to test, and dataset.test_path is set as well; leave one of",
        ),
        ({}, {"format": "csv"}, "has no file that ends in .csv.*ls dataset` lists the other form"),
        (
            {"time": pa.array([True] * 20)},
            {"split": TIMES},
            "column 'time' has type bool, expected a time",
        ),
    ],
)
def test_a_table_that_cannot_be_read_as_it_is_set_is_told(
    tmp_path, monkeypatch, columns, settings, shown
):
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "x", pa.table({"click": [0, 1] * 10, **columns}))
    settings = {"path": "x", "schema": {"labels": ["click"]}, **settings}
    with pytest.raises(UserError, match=shown):
        open_dataset(**settings)


@pytest.mark.long
def test_schema_imports_no_torch(path):
    code = "import sys; from runner.cli.schema import schema; schema([sys.argv[1]], ())\n"
    code += "print('torch' in sys.modules)"
    assert python("-c", code, path).stdout.splitlines()[-1] == "False"


def test_a_stranger_s_file_trains_in_two_commands(tmp_path, path, runner):
    out = str(tmp_path / "s.yaml")
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    runner.run("schema", path, "--out", out, env=env).check()
    runner.run(
        "dataset=parquet",
        f"dataset.schema={out}",
        f"hydra.run.dir={tmp_path / 'run'}",
        "trainer.batch_size=100",
        "trainer.num_threads=1",
        env=env,
    ).check()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "completed" and "test/auc" in result["metrics"]
    new = write_parquet(tmp_path / "new", clicks(70, seed=9))  # its rows are judged, all of them
    words = ("loop=eval", f"run={tmp_path / 'run'}", f"dataset.test_path={new}/*.parquet")
    done = runner.run(*words, f"hydra.run.dir={tmp_path / 'eval'}", env=env).check()
    assert "evaluating the 70 rows of the test split" in done.text
    assert "dataset.split: null -> {}" in done.text
    moved = f"dataset.path={new}/*.parquet"  # and here a part of them, or none, as of the training
    done = runner.run(*words[:2], moved, f"hydra.run.dir={tmp_path / 'other'}", env=env).check(2)
    assert "these are not the data of the training" in done.text
    assert "dataset.test_path=FILE evaluates all rows" in done.text
    learnt = (f"dataset.schema={out}", moved, f"dataset.learnt={tmp_path / 'run' / 'data'}")
    again = runner.run("dataset=parquet", *learnt, f"hydra.run.dir={tmp_path / 'next'}", env=env)
    assert "to train on these rows, divide them otherwise" in again.check(2).text


@pytest.mark.long
def test_an_evaluation_of_files_of_their_own_prepares_no_other_rows(tmp_path, path, runner):
    city, tags = {"encode": "vocabulary"}, {"encode": "vocabulary", "list": True}
    schema = tmp_path / "s.yaml"
    schema.write_text(
        yaml.safe_dump(
            {
                "labels": {"click": {}},
                "numeric": {"age": {"standardise": True, "default": 30}},
                "categorical": {"city": city, "tags": tags},
            }
        )
    )
    split = "dataset.split={random: {train: 0.8, validation: 0.1, test: 0.1}}"
    train = ("dataset=parquet", f"dataset.schema={schema}", f"dataset.path={path}", split)
    # a schedule that needs the number of updates, which follows from the train rows
    length = ("trainer.batch_size=100", "trainer.max_epochs=1", "scheduler=cosine")
    net = ("model=wide_and_deep", "trainer.num_threads=1", "report=false")
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    run = tmp_path / "run"
    runner.run(*train, *length, *net, f"hydra.run.dir={run}", env=env).check()
    new = write_parquet(tmp_path / "new", clicks(70, seed=9))
    metrics, prepared = {}, {}
    for name, words in {"alone": (), "beside": ("loop.split=[train,test]",)}.items():
        own = ("loop=eval", f"run={run}", f"dataset.test_path={new}", *words)
        env = {"RUNNER_CACHE": str(tmp_path / name)}
        runner.run(*own, f"hydra.run.dir={tmp_path / name / 'run'}", env=env).check()
        found = json.loads((tmp_path / name / "run" / "result.json").read_text())["metrics"]
        metrics[name] = {key: value for key, value in found.items() if key.startswith("test/")}
        prepared[name] = {file.name for file in (tmp_path / name).glob("table-*/*.arrow")}
    assert prepared["alone"] == {"test-00000.arrow"}
    assert prepared["beside"] == {"test-00000.arrow", "train-00000.arrow"}
    assert metrics["alone"] == metrics["beside"] != {}


def test_files_of_another_split_among_those_of_training_are_refused(tmp_path):
    for name in ("train", "validation", "test"):
        write_parquet(tmp_path / "rows" / name, clicks(60))
    rows = tmp_path / "rows"
    with pytest.raises(DataError, match=r"path and dataset\.test_path share a file, such as .*te"):
        open_dataset(path=str(rows), test_path=str(rows / "test"))
    both = [str(rows / "train"), str(rows / "test")]
    with pytest.raises(DataError, match=r"leave the files of validation out of dataset\.path"):
        open_dataset(path=str(rows / "train"), validation_path=both)
    apart = open_dataset(path=str(rows / "train"), test_path=str(rows / "test"))
    same = open_dataset(path=str(rows / "test"), test_path=str(rows / "test"))
    assert apart.num_rows == same.num_rows == {"train": 60, "test": 60}


def test_a_sample_of_times_joins_them_in_time_that_grows_with_their_number(monkeypatch):
    copied = []

    def concatenate(arrays):
        copied.append(sum(map(len, arrays)))
        return np.concatenate(arrays)

    class Numpy:
        """numpy, whose joins are counted."""

        def __getattr__(self, name):
            return concatenate if name == "concatenate" else getattr(np, name)

    times = np.random.default_rng(0).random((3000, 10))
    monkeypatch.setattr(splits, "MAX_SAMPLED_TIMES", 4000)
    monkeypatch.setattr(splits, "np", Numpy())
    sample = splits.TimeSample(seed=1)
    for of_chunk in times:
        sample.add(of_chunk)
    found = sample.quantiles(np.array([0.0, 0.5, 1.0]))
    assert sum(copied) < 6 * times.size
    assert found == pytest.approx([0.0, 0.5, 1.0], abs=0.03)


def test_infinite_values_do_not_move_the_buckets_of_the_others(tmp_path):
    rows = pa.table({"click": [0, 1] * 2, "x": [1.0, 2.0, np.inf, -np.inf]})
    ids = {"x": {"encode": "bucketise", "buckets": 2}}
    data = open_dataset(
        path=write_parquet(tmp_path / "x", rows),
        schema={"labels": {"click": {}}, "categorical": ids},
        mix=False,
    )
    [batch] = data.batches("train", batch_size=4)
    assert batch.sparse.values().tolist() == [0, 1, 1, 0]  # the median is 1.5


@pytest.mark.parametrize("rewrite", ["auto", "always"])
def test_allowed_labels_are_met_by_the_nearest_numbers_of_a_float32_column(tmp_path, rewrite):
    path = write_parquet(
        tmp_path / "x", pa.table({"rating": pa.array([1.1, 2, 3.3], pa.float32())})
    )

    def read(*allowed: float):
        schema = {"labels": {"rating": {"type": "regression", "allowed": allowed}}}
        data = open_dataset(path=path, schema=schema, rewrite=rewrite, mix=False)
        return next(data.batches("train", batch_size=3)).labels_BT[:, 0].tolist()

    assert read(1.1, 2, 3.3) == np.float32([1.1, 2, 3.3]).tolist()
    with pytest.raises(
        DataError, match=r"row 2, column 'rating': value 3\.\d+: allowed is 1\.1 or"
    ):
        read(1.1, 2)


@pytest.mark.parametrize(
    "split",
    [{"time": "time", "validation": 0.1, "test": 0.2}, {"random": {"train": 0.8, "test": 0.2}}],
)
def test_every_pass_over_the_rows_is_part_of_the_progress(path, tmp_path, split):
    recipe = TableRecipe(**recipe_settings(path=path, split=split))
    recipe.check()
    done: list[int] = []
    recipe.make(tmp_path, done.append)
    assert sum(done) == recipe.num_progress_units()
