"""Rows of label 0 with items that a user has never touched, against the events themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.columns.schema_file import parse_schema
from runner.data.core.blocks import read_blocks
from runner.data.core.fitted import FittedTransforms
from runner.data.interactions import partitions
from runner.data.interactions.rewrite import iterate_raw_rows
from runner.data.prepare.recipe import prepare
from runner.data.read.seen_items import START, STOP
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError

DECLARED = {"user": "user", "item": "item", "time": "ts"}
COUNTS = {"train": 2, "validation": 0, "test": 5}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Make 400 events of 20 users and 30 items; user 0 touches all items but one."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    user, item = rng.integers(1, 20, 400), rng.integers(0, 30, 400) * 7
    table = {
        "user": np.r_[np.zeros(29, int), user],
        "item": [f"i{value}" for value in np.r_[np.arange(29) * 7, item]],
        "ts": np.r_[np.arange(29), rng.integers(0, 60, 400)],
        "country": np.r_[np.zeros(29, int), user % 3],
    }
    pq.write_table(pa.table(table), tmp_path / "events.parquet")
    schema = {
        "interactions": {**DECLARED, "negatives": COUNTS},
        "categorical": {"country": {"num_rows": 3}, "item": {"encode": "vocabulary"}},
    }
    return TableRecipe(
        "parquet", str(tmp_path / "events.parquet"), schema, split="leave_one_out", mix=False
    )


def rows_of(recipe):
    folder, prepared = prepare(recipe)
    rows = {
        split: [row for file in files for row in read_blocks(folder / file).to_pylist()]
        for split, files in prepared.splits.items()
    }
    return rows, FittedTransforms.load(folder)


def test_each_row_is_followed_by_its_own_with_items_that_the_user_never_touched(recipe):
    rows, _ = rows_of(recipe)
    touched = {}
    for row in (row for part in rows.values() for row in part if row["label"]):
        touched.setdefault(row["user"], set()).update([row["item"], *row["history"]])
    catalogue, drawn = set().union(*touched.values()), set()
    for split, part in rows.items():
        positives = [number for number, row in enumerate(part) if row["label"]]
        for start, stop in zip(positives, [*positives[1:], len(part)]):
            assert stop - start == 1 + COUNTS[split]
            for row in part[start + 1 : stop]:
                changed = {"label": 0, "item": row["item"]}
                assert row == part[start] | changed
                assert row["item"] in catalogue - touched[row["user"]]
                drawn.add(row["item"])
    assert drawn == catalogue
    [last] = {row["item"] for row in rows["test"] if row["user"] == 2 and not row["label"]}
    assert last not in touched[2]  # user 0, who has one item left


def test_draws_depend_on_seed_user_and_row_and_not_on_partitions(recipe, tmp_path, monkeypatch):
    whole, fitted = rows_of(recipe)
    raw = pa.concat_tables(iterate_raw_rows(recipe, fitted, "test", tmp_path))
    names = fitted.vocabularies["item"]
    assert len(raw) == len(whole["test"])
    known = {}
    for row, item in zip(whole["test"], raw["item"].to_pylist()):
        assert known.setdefault(row["item"], item) == item
    assert len(set(known.values())) == len(known) <= len(names)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", 50)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "other"))
    parted, _ = rows_of(recipe)
    for split, part in whole.items():
        found, expected = (
            sorted(repr({k: v for k, v in row.items() if k not in (START, STOP)}) for row in rows)
            for rows in (parted[split], part)
        )
        assert found == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interactions": {"negatives": {"trian": 1}}}, "negatives.trian: there is no such key"),
        ({"interactions": {"negatives": 4}}, "negatives=4: expected {train: NUMBER"),
        (
            {"interactions": {"negatives": {"train": -1}}},
            "negatives.train=-1: must not be negative",
        ),
        ({"labels": {"buy": {}}}, "makes the label, so the schema must declare no label"),
        (
            {"interactions": {"sequences": ["kind"]}, "categorical": {"kind": {"num_rows": 9}}},
            "kind is in sequences and in categorical, and a drawn item would",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    events = {**DECLARED, "negatives": {"train": 1}, **changes.get("interactions", {})}
    with pytest.raises(ConfigError, match=message):
        parse_schema({**changes, "interactions": events})
