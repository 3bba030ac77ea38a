"""Numbers that stand for missing values, and texts of several rows, are told, not changed."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from runner.data.proposal.columns.doubtful_values import describe_thousands
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.errors import DataError
from tests.data.clicks import open_dataset

RANDOM = np.random.default_rng(3)
NUM_ROWS = 2000
AGES = RANDOM.integers(18, 80, NUM_ROWS).astype(float)
AMOUNTS = RANDOM.gamma(2, 30, NUM_ROWS)
DEBTS = RANDOM.normal(0, 900, NUM_ROWS)
COUNTS = RANDOM.poisson(2, NUM_ROWS).astype(float)


def notes_of(folder: Path, name: str, values: np.ndarray) -> list[str]:
    click = (np.random.default_rng(1).random(NUM_ROWS) < 0.3).astype(int)
    frame = pd.DataFrame({name: values, "price": AMOUNTS[::-1], "click": click})
    frame.to_parquet(folder / "rows.parquet")
    proposal = propose_schema(str(folder / "rows.parquet"))
    roles = {f.name: role.name for f, role in proposal.columns}
    assert roles[name] == roles["price"] == "numeric"
    return [note for note in proposal.notes if "missing value?" in note]


@pytest.mark.parametrize(
    ("name", "values", "code", "every", "is_told"),
    [
        ("age", AGES, -1, 20, True),
        ("age", AGES, 999, 20, True),
        ("amount", AMOUNTS, -999, 50, True),
        ("amount", AMOUNTS, 99999, 50, True),
        ("amount", AMOUNTS, -999, 500, False),  # too rare to be a habit
        ("amount", AMOUNTS, 99, 20, False),  # amid the others
        ("amount", AMOUNTS, -123, 20, False),  # a number like any
        ("debt", DEBTS, -999, 20, False),  # others are negative as well
        ("count", COUNTS, -1, 20, False),  # next to the others
        ("part", np.linspace(0.01, 2, NUM_ROWS), -1, 20, True),  # as in Porto Seguro's drivers
        ("part", np.linspace(-0.5, 2, NUM_ROWS), -1, 20, False),
    ],
)
def test_a_number_that_stands_for_a_missing_one_is_told(
    tmp_path, name, values, code, every, is_told
):
    values = values.copy()
    values[::every] = code
    notes = notes_of(tmp_path, name, values)
    assert bool(notes) == is_told
    if is_told:
        assert f"{name} ({code} in {1 / every:.1%})" in notes[0]
        t = pd.DataFrame({name: values})
        exec(re.findall("`(.*?)`", notes[0])[0], {"t": t})
        assert t[name].isna().mean() == 1 / every and t[name].min() >= 0


def test_a_table_with_a_column_for_each_item_is_told_how_it_becomes_rows_of_ratings(
    tmp_path, monkeypatch
):
    """As Jester's jokes, of which 99 says that a user has not rated one."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x_RC = random.uniform(-10, 10, (NUM_ROWS, 30)).round(2)
    is_rated_RC = random.random(x_RC.shape) < np.linspace(0.1, 0.6, 30)
    frame = pd.DataFrame(np.where(is_rated_RC, x_RC, 99.0)).add_prefix("joke")
    frame.insert(0, "count", is_rated_RC.sum(1))
    frame.to_parquet("wide.parquet")
    [note] = [n for n in propose_schema("wide.parquet").notes if "missing value?" in n]
    assert "of 30 columns, joke0 to joke29;" in note and len(note) < 600
    recipe, command = re.findall("`(.*?)`", note)
    exec(recipe, {"t": frame})
    rows = pd.read_parquet("rows.parquet")
    assert len(rows) == is_rated_RC.sum() and rows["rating"].abs().max() <= 10
    row = rows.iloc[7]
    assert x_RC[row["user"], int(row["item"].removeprefix("joke"))] == row["rating"]
    path, flag, label = command.split()[4:]
    proposal = propose_schema(path, hints=Hints(labels=(label,)))
    roles = {f.name: role.name for f, role in proposal.columns}
    assert flag == "--label" and roles.pop("rating") == "labels"
    assert roles == {"user": "categorical", "item": "categorical"}


def test_a_point_between_thousands_is_told_where_it_is_read_as_that_of_a_fraction(tmp_path):
    visits = np.random.default_rng(5).lognormal(6.9, 1.2, NUM_ROWS).astype(int)
    visits = np.minimum(visits, 999_999)
    clicks = np.random.default_rng(1).integers(0, 2, NUM_ROWS)
    path = tmp_path / "rows.csv"

    def notes_with(texts: list[str]) -> list[str]:
        lines = [f"{text};{click}" for text, click in zip(texts, clicks)]
        path.write_text("\n".join(["visits;click", *lines]) + "\n")
        return [n for n in propose_schema(str(path)).notes if "between thousands" in n]

    [note] = notes_with([f"{count:,}".replace(",", ".") for count in visits])
    assert note.startswith("visits: fractions of three digits") and "`input: amount_comma`" in note
    numeric = {"visits": {"input": "amount_comma"}}
    schema = {"labels": ["click"], "numeric": numeric, "delimiter": ";"}
    notes_with([f"{count:,}".replace(",", ".") for count in visits])
    data = open_dataset(path=str(path), format="csv", schema=schema, mix=False)
    found = next(data.batches("train", batch_size=NUM_ROWS)).dense_BD[:, 0]
    assert found.tolist() == visits.tolist()
    assert not notes_with([f"{count / 1000:.3f}" for count in visits])  # kilometres
    assert not notes_with([f"{x:g}" for x in np.round(AMOUNTS, 1)])
    assert not notes_with([f"{1 + x}" for x in AMOUNTS])
    huge = pa.table({"visits": np.minimum(AMOUNTS, 900) * 1e305})
    with np.errstate(over="raise"):
        assert describe_thousands(huge, ["visits"]) == []


def test_impressions_of_several_items_are_told_with_the_lines_that_make_rows(tmp_path, monkeypatch):
    shown = [[f"N{i}-{i % 2}", f"N-{i + 1}-0", "N7-1"][: 1 + i % 3] for i in range(300)]
    t = pd.DataFrame({"user": np.arange(300) % 40, "impressions": map(" ".join, shown)})
    t.to_csv(tmp_path / "behaviors.tsv", sep="\t", index=False)
    [note] = [n for n in propose_schema(str(tmp_path / "behaviors.tsv")).notes if "explode" in n]
    monkeypatch.chdir(tmp_path)
    exec(re.findall("`(.*?)`", note)[0], {"t": t})
    rows = pd.read_parquet("rows.parquet")
    expected = [text.rpartition("-") for row in shown for text in row]
    assert rows["item"].tolist() == [item for item, _, _ in expected]
    assert rows["click"].tolist() == [int(label) for _, _, label in expected]
    roles = {f.name: role.name for f, role in propose_schema("rows.parquet").columns}
    assert roles == {"user": "categorical", "item": "categorical", "click": "labels"}


@pytest.mark.parametrize("words", [["N1-0 N2-1", "N3-0 N4-2"] * 50, [b"\xff 1", b"\xfe 2"] * 50])
def test_a_list_of_items_without_labels_is_no_impression(tmp_path, words):
    frame = pd.DataFrame({"items": words, "click": [0, 1] * 50})
    frame.to_parquet(tmp_path / "rows.parquet")
    assert not [n for n in propose_schema(str(tmp_path / "rows.parquet")).notes if "explode" in n]


def test_rows_made_of_impressions_keep_their_histories_as_lists_and_their_times(tmp_path):
    rng = np.random.default_rng(0)
    users = [" ".join(f"N{i}" for i in rng.integers(0, 900, 20)) for _ in range(300)]
    user = rng.integers(0, 300, 30_000)
    starts = pd.Timestamp("2019-11-09") + pd.to_timedelta(np.arange(30_000) * 16, unit="s")
    t = pd.DataFrame({"c2": starts.strftime("%m/%d/%Y %I:%M:%S %p"), "c3": np.array(users)[user]})
    t["item"], t["click"] = rng.integers(0, 900, 30_000), rng.integers(0, 2, 30_000)
    t.to_parquet(tmp_path / "rows.parquet")
    proposal = propose_schema(str(tmp_path / "rows.parquet"))
    roles = {f.name: role for f, role in proposal.columns}
    assert roles["c3"].settings["separator"] == " " and roles["c3"].name == "categorical"
    # the 20,000 first rows are of days below 13
    assert proposal.places["split"] == {
        "time": "c2", "input": "mdy", "validation": 0.1, "test": 0.1
    }  # fmt: skip


LISTS = {
    "many ids": ("|", "a:{}", 600),
    "many packages": (",", "com.a.p{}", 600),
    "spaces behind": (", ", "tag {}", 30),
    "spaces around": (" | ", "tag {}", 30),
}


@pytest.mark.parametrize("what", LISTS)
def test_lists_in_texts_have_the_separator_that_leaves_their_parts(tmp_path, what):
    separator, item, num_items = LISTS[what]
    rng = np.random.default_rng(0)
    texts = [separator.join(map(item.format, rng.integers(0, num_items, 9))) for _ in range(400)]
    t = pd.DataFrame({"tags": np.array(texts)[rng.integers(0, 400, 2000)]})
    t["click"] = rng.integers(0, 2, 2000)
    t.to_parquet(tmp_path / "rows.parquet")
    [(f, role), _] = propose_schema(str(tmp_path / "rows.parquet")).columns
    assert role.settings["separator"] == separator and f.num_distinct <= num_items


def test_addresses_and_a_space_that_is_not_behind_each_comma_make_no_other_parts(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array(["Elm St", "Oak St", "Main St", "Bay Rd", "Hill Rd"])
    t = pd.DataFrame(
        {
            "address": [f"{n} {words[n % 5]}, {n * 7 % 900} Ville, State {n}" for n in range(500)],
            "mixed": [",".join(map(str, rng.integers(0, 9, 4))) + ", 1" for _ in range(500)],
            "click": rng.integers(0, 2, 500),
        }
    )
    t.to_parquet(tmp_path / "rows.parquet")
    roles = {f.name: r for f, r in propose_schema(str(tmp_path / "rows.parquet")).columns}
    assert "separator" not in roles["address"].settings
    assert roles["mixed"].settings["separator"] == ","


@pytest.mark.parametrize("kind", ["numbers", "texts", "missing"])
def test_numbered_columns_of_a_history_are_told_with_the_lines_that_make_a_list(
    tmp_path, monkeypatch, kind
):
    rng = np.random.default_rng(0)
    t = pd.DataFrame({"item": rng.integers(1, 200, 900), "click": rng.integers(0, 2, 900)})
    for place in range(1, 5):
        t[f"hist_{place}"] = rng.integers(0, 200, 900)  # 0: none
        t[f"C{place}"] = rng.integers(0, 200, 900)
    held = [[i for i in row if i] for row in t.filter(like="hist").to_numpy().tolist()]
    own = [*t.filter(like="hist"), "item"]
    if kind == "missing":
        t[own] = t[own].mask(t[own] == 0)
    if kind == "texts":
        t[own] = ("i" + t[own].astype(str)).mask(t[own] == 0)
        held = [[f"i{i}" for i in row] for row in held]
    t.to_parquet(tmp_path / "t.parquet")
    [note] = [n for n in propose_schema(str(tmp_path / "t.parquet")).notes if "as one list" in n]
    assert note.startswith("hist_1 to hist_4 hold ids of item, each")
    monkeypatch.chdir(tmp_path)
    exec(re.findall("`(.*?)`", note)[0], {"t": t})
    assert [list(row) for row in pd.read_parquet("rows.parquet")["hist"]] == held
    roles = {f.name: role for f, role in propose_schema("rows.parquet").columns}
    assert roles["hist"].settings["list"] and not {*roles} & {*own[:-1]}


def test_the_index_that_pandas_writes_is_no_feature(tmp_path):
    frame = pd.DataFrame({"price": AMOUNTS, "click": np.arange(NUM_ROWS) % 2})
    frame.set_axis(np.arange(NUM_ROWS) // 3).to_parquet(tmp_path / "rows.parquet")
    columns = propose_schema(str(tmp_path / "rows.parquet")).columns
    [role] = [role for f, role in columns if f.name == "__index_level_0__"]
    assert (role.name, role.reason) == ("", "the index that pandas has written, which numbers rows")


@pytest.mark.parametrize("write", [json.dumps, repr])
@pytest.mark.parametrize("alone", [False, True])
def test_objects_in_texts_are_told_with_the_lines_that_make_columns(
    tmp_path, monkeypatch, write, alone
):
    """As Kafka's values and Postgres's jsonb stand in CSV, and dicts that pandas has written."""
    objects = [{"user": n % 7, "at": {"city": f"c{n % 3}"}, "n": n} for n in range(200)]
    rows = {"payload": [None, "{}", *map(write, objects[2:])], "click": [n % 2 for n in range(200)]}
    rows |= {} if alone else {"shop": [f"s{n % 5}" for n in range(200)]}
    t = pd.DataFrame(rows)
    t.to_csv(tmp_path / "t.csv", index=False)
    if alone:
        with pytest.raises(DataError, match="no column to learn from") as raised:
            propose_schema(str(tmp_path / "t.csv"))
        told = str(raised.value)
    else:
        told = next(n for n in propose_schema(str(tmp_path / "t.csv")).notes if "objects" in n)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="error"):  # of keywords that pandas will not know
        exec(re.search(r"With pandas, `(.*)` makes them columns", told)[1], {"t": t, "pandas": pd})
    made = propose_schema("rows.parquet").columns
    assert {"user", "at.city"} <= {f.name for f, r in made if r.name == "categorical"}
