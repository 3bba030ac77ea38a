"""A file of hard negatives by value: what is read from it, and which mistakes it names."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.hash_text import hash_texts
from runner.data.core.fitted import FittedTransforms
from runner.data.core.transforms import hash_ids
from runner.data.tabular.negatives_file import read_negatives
from runner.errors import DataError

ITEMS = sorted(hash_texts(pa.array(["ball", "cup", "hat"])).tolist())
FITTED = FittedTransforms(
    num_rows={"user": 12, "item": 5, "place": 7, "shop": 4},
    id_types={"item_id": "string", "user": "integer", "place": "string"},
    vocabularies={"item": np.array(ITEMS), "user": np.arange(100, 110)},
)
SPECS = (
    IdSpec("user", "user", "vocabulary"),
    IdSpec("item", "item_id", "vocabulary"),
    IdSpec("place", "place", "hash", num_rows=7),
    IdSpec("shop", "shop", num_rows=4),
    IdSpec("guest", "guest", "growing", num_rows=9),
)
PAIRS = [(103, "hat"), (101, "cup"), (103, "ball"), (103, "hat")]


def row_of(item: str) -> int:
    return ITEMS.index(hash_texts(pa.array([item])).tolist()[0]) + 2


def lists_of(found) -> dict[int, list[int]]:
    parts = np.split(found.items_V, found.offsets_K1[1:-1])
    return {key: part.tolist() for key, part in enumerate(parts) if len(part)}


def write(folder, name, columns):
    table = pa.table(columns)
    if name.lower().endswith(".csv"):
        pacsv.write_csv(table, folder / name)
    elif name.lower().endswith(".jsonl"):
        (folder / name).write_text("\n".join(map(json.dumps, table.to_pylist())) + "\n")
    else:
        pq.write_table(table, folder / name)
    return str(folder / name)


@pytest.mark.parity("E15")
@pytest.mark.parametrize("ending", ["csv", "CSV", "parquet", "jsonl", "Jsonl"])
def test_pairs_of_any_format_become_the_lists_of_a_dictionary(tmp_path, ending):
    columns = dict(zip(("user", "negatives"), map(list, zip(*PAIRS))))
    found = read_negatives(write(tmp_path, f"hard.{ending}", columns), SPECS, FITTED, "item")
    assert found.key == "user" and len(found.offsets_K1) == 13
    expected = {3: [row_of("cup")], 5: [row_of("hat"), row_of("ball"), row_of("hat")]}
    assert lists_of(found) == expected  # value 100 has row 2, in the order of the file


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_list_a_row_is_the_same_as_a_pair_a_row(tmp_path, ending):
    columns = {"user": [103, 105, 101], "negatives": [["hat", "ball"], [], ["cup"]]}
    path = write(tmp_path, f"hard.{ending}", columns)
    found = read_negatives(path, SPECS, FITTED, "item")
    assert lists_of(found) == {3: [row_of("cup")], 5: [row_of("hat"), row_of("ball")]}
    pairs = {"user": [103, 101, 103], "negatives": ["hat", "cup", "ball"]}
    path = write(tmp_path, "pairs.csv", pairs)
    assert read_negatives(path, SPECS, FITTED, "item").digest() == found.digest()


def test_keys_are_items_texts_or_rows_as_the_dataset_has_them(tmp_path):
    path = write(tmp_path, "a.csv", {"item_id": ["cup", "hat"], "negatives": ["hat", "cup"]})
    found = read_negatives(path, SPECS, FITTED, "item")
    assert lists_of(found) == {row_of("cup"): [row_of("hat")], row_of("hat"): [row_of("cup")]}
    path = write(tmp_path, "b.csv", {"place": ["north"], "negatives": ["hat"]})
    found = read_negatives(path, SPECS, FITTED, "item")
    [place] = hash_ids(hash_texts(pa.array(["north"])), 7, 0)
    assert lists_of(found) == {place: [row_of("hat")]}
    path = write(tmp_path, "c.csv", {"item_id": ["cup"], "negatives": [3]})
    found = read_negatives(path, SPECS, FITTED, "shop")  # the item's ids are rows already
    assert lists_of(found) == {row_of("cup"): [3]}


WRONG = {
    "an unknown item": (
        {"user": [103, 101], "negatives": ["hat", "hut"]},
        r"hard.csv: line 3, column 'negatives': value 'hut': has no row of its own",
    ),
    "an unknown user": (
        {"user": [103, 7], "negatives": ["hat", "cup"]},
        "line 3, column 'user': value '7': has no row of its own",
    ),
    "a row beyond the table": (
        {"shop": [1, 4], "negatives": ["hat", "cup"]},
        "line 3, column 'shop': value 4: its table has the rows 0 to 3",
    ),
    "no items": ({"user": [103], "negative": ["hat"]}, "has no column 'negatives'.*'negative'"),
    "no key": ({"usr": [103], "negatives": ["hat"]}, "exactly one of the columns.*nearest: 'user'"),
    "two keys": ({"user": [103], "shop": [1], "negatives": ["hat"]}, "it has user, shop"),
    "no rows": ({"user": pa.array([], pa.int64()), "negatives": []}, "hard.csv: has no rows"),
    "a growing key": (
        {"guest": [1], "negatives": ["hat"]},
        "its ids get their rows only in the training",
    ),
}


@pytest.mark.parametrize(("columns", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        read_negatives(write(tmp_path, "hard.csv", columns), SPECS, FITTED, "item")


def test_a_file_that_does_not_exist_is_named_without_a_setting_of_the_dataset(tmp_path):
    write(tmp_path, "hard.csv", {"user": [103], "negatives": ["hat"]})
    with pytest.raises(DataError, match=r"^\S*/hrad.csv: no such path.*hard.csv"):
        read_negatives(str(tmp_path / "hrad.csv"), SPECS, FITTED, "item")


def test_an_unknown_item_of_a_list_is_named_by_its_row(tmp_path):
    columns = {"user": [103, 101], "negatives": [["hat"], ["cup", None, "hut"]]}
    path = write(tmp_path, "hard.parquet", columns)
    with pytest.raises(DataError, match=r"row 1, column 'negatives': value None: has no row"):
        read_negatives(path, SPECS, FITTED, "item")
