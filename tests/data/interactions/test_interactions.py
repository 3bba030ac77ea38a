"""Raw interactions: histories, protocols, cores and sessions, against loops over events."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from runner.data.columns.schema_file import parse_schema
from runner.data.core.blocks import read_blocks
from runner.data.core.fitted import FittedTransforms
from runner.data.interactions import partitions
from runner.data.interactions.histories import bucket_gaps
from runner.data.interactions.protocols import find_core
from runner.data.prepare import shards
from runner.data.prepare.recipe import prepare
from runner.data.read import seen_items
from runner.data.read.seen_items import START, STOP, SeenItems
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("own_cache")
DECLARED = {"user": "user", "item": "item", "time": "ts", "max_length": 5}
SPLITS = ("train", "validation", "test")


def events(num_rows=600, num_users=30, num_items=40, seed=0, span=60):
    """Return random events with many equal times; `row` tells them apart."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": rng.integers(100, 100 + num_users, num_rows),
            "item": rng.integers(0, num_items, num_rows) * 7,
            "ts": rng.integers(0, span, num_rows),
            "rating": rng.integers(1, 6, num_rows).astype(float),
            "action": rng.choice(["view", "cart", "buy"], num_rows),
            "row": np.arange(num_rows),
        }
    )


def make(table, tmp_path, split="leave_one_out", more=None, schema=None, **settings):
    """Return the rows of each split, as dictionaries with raw ids, and the fitted transforms."""
    path = tmp_path / "events.parquet"
    pq.write_table(table, path, row_group_size=101)
    declared = {
        "path": str(path),
        "interactions": {**DECLARED, **(more or {})},
        "carried": ["row"],
        **(schema or {}),
    }
    recipe = TableRecipe("parquet", None, declared, split=split, **settings)
    folder, prepared = prepare(recipe)
    fitted = FittedTransforms.load(folder)
    names = {0: None, 1: None} | {
        n + 2: int(v) for n, v in enumerate(fitted.vocabularies.get("item", []))
    }
    rows = {}
    for name, files in prepared.splits.items():
        found = [row for file in files for row in read_blocks(folder / file).to_pylist()]
        for row in found:
            row["history"] = [names[i] for i in row["history"]]
            row["item"] = names[row["item"]]
        if name != "train":
            slices = [np.array([row.pop(column) for row in found]) for column in (START, STOP)]
            places, seen = SeenItems(folder, name, *slices).find(np.arange(len(found)))
            for number, row in enumerate(found):
                row["seen"] = sorted(names[i] for i in seen[places == number])
        rows[name] = {next(v for k, v in row.items() if k.endswith("row")): row for row in found}
    return rows, fitted


def sorted_users(table):
    """Return user -> its events in the order of time and place."""
    rows = sorted(table.to_pylist(), key=lambda e: (e["user"], e["ts"], e["row"]))
    return {u: list(group) for u, group in itertools.groupby(rows, key=lambda e: e["user"])}


def expected_history(own, event, allowed, length=5):
    before = [e for e in own if e["ts"] < event["ts"] and e["row"] in allowed]
    return [e["item"] for e in before][-length:]


def test_equal_times_by_hand_are_never_in_a_history(tmp_path):
    ts = [10, 20, 20, 20, 30, 5, 30, 40]
    table = pa.table(
        {
            "user": [1, 1, 1, 1, 1, 2, 1, 1],
            "item": [11, 12, 13, 14, 15, 99, 16, 17],
            "ts": ts,
            "row": list(range(8)),
        }
    )
    rows, _ = make(table, tmp_path, split=None)
    seen = {row: values["history"] for row, values in rows["train"].items()}
    assert seen == {
        1: [11],
        2: [11],
        3: [11],
        4: [11, 12, 13, 14],
        6: [11, 12, 13, 14],
        7: [12, 13, 14, 15, 16],
    }


@pytest.mark.parametrize("count", [1, 2])
def test_leave_out_splits_and_histories_equal_a_loop_over_events(tmp_path, count):
    table = events()
    split = "leave_one_out" if count == 1 else {"leave_k_out": count}
    rows, _ = make(table, tmp_path, split=split)
    held = {name: set() for name in SPLITS}
    for own in sorted_users(table).values():
        names = [e["row"] for e in own]
        if len(own) > 2 * count:
            held["test"] |= set(names[-count:])
            held["validation"] |= set(names[-2 * count : -count])
            names = names[: -2 * count]
        held["train"] |= set(names)
    allowed: set[int] = set()
    for name in SPLITS:
        allowed |= held[name]
        expected = {}
        for own in sorted_users(table).values():
            for event in own:
                if event["row"] in held[name]:
                    expected[event["row"]] = expected_history(own, event, allowed)
        found = {row: values["history"] for row, values in rows[name].items()}
        assert found == {row: items for row, items in expected.items() if items}
        assert all(v["label"] == 1 for v in rows[name].values())


def test_what_users_have_seen_is_that_of_a_calculation_by_hand(tmp_path):
    ts = [10, 20, 90, 91, 92, 92, 5, 6, 7]
    table = pa.table(
        {
            "user": [1] * 6 + [2] * 3,
            "item": [11, 12, 13, 14, 15, 16, 21, 22, 23],
            "ts": ts,
            "row": list(range(9)),
        }
    )
    more = {"max_length": 1, "session_gap": "30s"}
    rows, _ = make(table, tmp_path, split={"leave_k_out": 2}, more=more)
    # user 1: events 0 and 1 are for training, 2 and 3 for validation, 4 and 5 for testing; 4 and 5
    # are at the same time, so neither has seen the other; user 2 has too few events
    seen = {r: v["seen"] for split in ("validation", "test") for r, v in rows[split].items()}
    assert seen == {3: [11, 12, 13], 4: [11, 12, 13, 14], 5: [11, 12, 13, 14]}
    assert {r: v["history"] for r, v in rows["test"].items()} == {4: [14], 5: [14]}


PROTOCOLS = [
    "leave_one_out",
    {"leave_k_out": 3},
    {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}},
    {"user": {"train": 0.6, "validation": 0.2, "test": 0.2}},
    {"time": "ts", "validation": 0.1, "test": 0.2},
    {"time": "ts", "validation": "1970-01-01 00:00:40", "test": "1970-01-01 00:00:50"},
]


@pytest.mark.parametrize("split", PROTOCOLS, ids=str)
def test_what_users_have_seen_equals_a_loop_over_events(tmp_path, monkeypatch, split):
    # files and blocks of the pool are as small as its slices
    monkeypatch.setattr(seen_items, "BLOCK_ROWS", 4)
    monkeypatch.setattr(seen_items, "SHARD_ROWS", 8)
    monkeypatch.setattr(shards, "BLOCK_ROWS", 4)
    monkeypatch.setattr(shards, "SHARD_ROWS", 8)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", 200)
    more = {"min_history": 0, "session_gap": "9s", "rating": "rating", "positive": 3}
    table = events()
    rows, _ = make(table, tmp_path, split=split, more={**more, "below": "negative"})
    split_of = {row: name for name in SPLITS for row in rows[name]}
    for own in sorted_users(table).values():
        liked = [e for e in own if e["rating"] >= 3]
        for event in own:
            if (name := split_of.get(event["row"])) in (None, "train"):
                continue
            rank = SPLITS.index(name)
            seen = sorted(
                e["item"]
                for e in liked
                if SPLITS.index(split_of[e["row"]]) < rank
                or (split_of[e["row"]] == name and e["ts"] < event["ts"])
            )
            assert rows[name][event["row"]]["seen"] == seen


@pytest.mark.parametrize("split", PROTOCOLS, ids=str)
def test_no_held_out_event_is_in_a_train_history(tmp_path, split):
    table = events(num_users=12)
    items = pa.array(np.arange(table.num_rows))  # each event has an item of its own
    table = table.set_column(1, "item", items)
    rows, _ = make(table, tmp_path, split=split, more={"max_length": 1000})
    seen = {name: {i for r in rows[name].values() for i in r["history"]} for name in SPLITS}
    made = {name: set(rows[name]) for name in SPLITS}
    assert all(made[name] for name in SPLITS) and seen["train"] and seen["test"]
    assert not seen["train"] & (made["validation"] | made["test"])
    assert not seen["validation"] & made["test"]
    time = dict(zip(table["row"].to_pylist(), table["ts"].to_pylist()))
    for name, row in ((n, r) for n in SPLITS for r in rows[n].items()):
        assert all(time[item] < time[row[0]] for item in row[1]["history"]), name


def test_a_split_by_users_shares_no_user_and_one_by_date_follows_it(tmp_path):
    table = events()
    user = dict(zip(table["row"].to_pylist(), table["user"].to_pylist()))
    shares = {"train": 0.6, "validation": 0.2, "test": 0.2}
    rows, _ = make(table, tmp_path, split={"user": shares})
    of = {name: {user[row] for row in rows[name]} for name in SPLITS}
    assert all(of.values()) and not of["train"] & of["test"] | of["train"] & of["validation"]
    days = {"time": "ts", "test": "1970-01-01T00:00:50"}
    rows, _ = make(table, tmp_path, split=days)
    time = dict(zip(table["row"].to_pylist(), table["ts"].to_pylist()))
    assert all(time[row] >= 50 for row in rows["test"]) and rows["test"]
    assert all(time[row] < 50 for row in rows["train"])


def test_the_core_equals_taking_events_away_one_at_a_time(tmp_path):
    table = events(400, 40, 60)
    left = [(e["user"], e["item"], e["row"]) for e in table.to_pylist()]
    while True:
        users, items = Counter(e[0] for e in left), Counter(e[1] for e in left)
        poor = [e for e in left if users[e[0]] < 6 or items[e[1]] < 5]
        if not poor:
            break
        left = [e for e in left if e not in poor[:1]]
    more = {"min_count": {"user": 6, "item": 5}, "min_history": 0}
    rows, fitted = make(table, tmp_path, split=None, more=more)
    assert 0 < len(left) < 400 and set(rows["train"]) == {e[2] for e in left}
    assert set(fitted.vocabularies["item"]) == {e[1] for e in left}


def test_a_core_over_partitions_equals_that_of_one():
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 40, 400), rng.integers(0, 60, 400)
    [whole] = find_core([users], [items], 7, 5)
    low = users < 20
    parts = find_core([users[low], users[~low]], [items[low], items[~low]], 7, 5)
    assert (np.concatenate(parts) == np.concatenate([whole[low], whole[~low]])).all()
    assert 0 < whole.sum() < 400


def test_sessions_end_histories(tmp_path):
    table = pa.table({"user": [1] * 6, "item": [1, 2, 3, 4, 5, 6], "row": list(range(6))})
    table = table.append_column("ts", pa.array([0, 60, 3000, 3060, 3100, 9000]))
    rows, _ = make(table, tmp_path, split=None, more={"session_gap": "30min"})
    assert {r: v["history"] for r, v in rows["train"].items()} == {1: [1], 3: [3], 4: [3, 4]}


def test_low_ratings_are_left_out_or_rows_of_label_0_in_no_history(tmp_path):
    table = events()
    rated = {"rating": "rating", "positive": 4}
    rows, _ = make(table, tmp_path, split=None, more={**rated, "below": "negative"})
    dropped, _ = make(table, tmp_path, split=None, more=rated)
    rating = dict(zip(table["row"].to_pylist(), table["rating"].to_pylist()))
    liked = {row for row, value in rating.items() if value >= 4}
    for own in sorted_users(table).values():
        for event in own:
            items = expected_history(own, event, liked)
            for made, ids in ((rows, rating), (dropped, liked)):
                found = made["train"].get(event["row"])
                assert (found is not None) == bool(items and event["row"] in ids)
                assert found is None or found["history"] == items
    assert all(v["label"] == (rating[r] >= 4) for r, v in rows["train"].items())


def test_further_sequences_lie_beside_the_items(tmp_path):
    table = events()
    more = {
        "sequences": ["action", "shop"],
        "time_gap": True,
        "events": {"column": "action", "predict": "buy"},
    }
    table = table.append_column("shop", pa.array(np.arange(table.num_rows) % 9))
    schema = {"categorical": {"shop": {"num_rows": 9}}}
    rows, fitted = make(table, tmp_path, split=None, more=more, schema=schema)
    users = sorted_users(table)
    by_row = {e["row"]: e for own in users.values() for e in own}
    hashed = {int(v): n + 2 for n, v in enumerate(fitted.vocabularies["history_action"])}
    assert len(hashed) == 3
    names: dict[int, set[str]] = {}
    assert set(rows["train"]) <= {r for r, e in by_row.items() if e["action"] == "buy"}
    for row, values in rows["train"].items():
        event = by_row[row]
        own = [e for e in users[event["user"]] if e["ts"] < event["ts"]][-5:]
        assert values["history"] == [e["item"] for e in own]
        assert values["history_shop"] == [e["shop"] for e in own]
        gaps = np.array([event["ts"] - e["ts"] for e in own])
        assert values["history_time_gap"] == [int(np.floor(np.log2(1 + g))) for g in gaps]
        for code, e in zip(values["history_action"], own, strict=True):
            names.setdefault(code, set()).add(e["action"])
    assert sorted(map(sorted, names.values())) == [["buy"], ["cart"], ["view"]]


@pytest.mark.parametrize(
    ("predict", "values"),
    [
        (True, lambda is_buy: is_buy),
        (True, lambda is_buy: pa.array(np.where(is_buy, "TRUE", "FALSE"))),
        ("1.0", lambda is_buy: pa.array(is_buy).cast(pa.float64())),
        (1, lambda is_buy: pa.array(np.where(is_buy, "1.0", "0.0"))),
    ],
)
def test_a_type_of_events_is_found_as_the_column_shows_it(tmp_path, predict, values):
    table = events()
    is_buy = np.array(table["action"]) == "buy"
    table = table.append_column("bought", pa.array(values(is_buy)))
    more = {"events": {"column": "bought", "predict": [predict]}}
    rows, _ = make(table, tmp_path, split=None, more=more)
    plain = {"events": {"column": "action", "predict": ["buy"]}}
    assert rows["train"].keys() == make(table, tmp_path, split=None, more=plain)[0]["train"].keys()


def test_gap_buckets_are_powers_of_two_and_end():
    assert bucket_gaps(np.array([0.0, 1, 2, 3, 1e30])).tolist() == [0, 1, 1, 2, 39]


def test_windows_hold_each_event_once_and_last_is_one_row_a_user(tmp_path):
    table = events(span=10**6)
    rows, _ = make(table, tmp_path, split=None, more={"train_on": "windows"})
    learnt = Counter()
    by_row = {e["row"]: e for e in table.to_pylist()}
    for row, values in rows["train"].items():
        learnt.update(
            (by_row[row]["user"], i) for i in (*values["history"][1:], by_row[row]["item"])
        )
    total = Counter()
    for user, own in sorted_users(table).items():
        total.update((user, e["item"]) for e in own[1:])
    assert learnt == total
    rows, _ = make(table, tmp_path, split=None, more={"train_on": "last"})
    assert set(rows["train"]) == {own[-1]["row"] for own in sorted_users(table).values()}


def test_many_partitions_and_texts_give_the_same_rows(tmp_path, monkeypatch):
    table = events()
    whole, _ = make(table, tmp_path)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", 50)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "other"))
    parted, _ = make(table, tmp_path)
    assert parted == whole
    assert not list((tmp_path / "other").rglob("*.partition"))
    pyarrow.csv.write_csv(table, tmp_path / "events.csv")
    schema = {"interactions": DECLARED, "carried": ["row"]}
    recipe = TableRecipe("csv", str(tmp_path / "events.csv"), schema, split="leave_one_out")
    folder, prepared = prepare(recipe)
    for name in SPLITS:
        found = pa.concat_tables([read_blocks(folder / f) for f in prepared.splits[name]])
        lengths = pa.compute.list_value_length(found["history"]).to_pylist()
        rows = [int(r) for r in found["carried row"].to_pylist()]
        expected = {r: len(v["history"]) for r, v in whole[name].items()}
        assert dict(zip(rows, lengths)) == expected


def test_transforms_of_a_run_give_its_rows_again(tmp_path):
    table, split = events(), {"time": "ts", "validation": 0.1, "test": 0.1}
    first, fitted = make(table, tmp_path, split=split)
    fitted.save(tmp_path / "run")
    again, _ = make(table, tmp_path, split=split, learnt=str(tmp_path / "run"))
    assert again == first


def test_bad_events_are_errors_that_name_them_or_are_skipped(tmp_path):
    lines = ["user,item,ts", "1,5,10", "1,6,20", "1,,30", "1,7,soon", "1,8,50", "1,9,60", "1,4,70"]
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines[:4]) + "\n")
    schema = {"interactions": DECLARED}
    with pytest.raises(DataError, match=r"bad\.csv: line 4, column 'item': is missing"):
        prepare(TableRecipe("csv", str(path), schema))
    path.write_text("\n".join(lines) + "\n")
    recipe = TableRecipe("csv", str(path), schema, on_bad_rows="skip")
    folder, prepared = prepare(recipe)
    assert prepared.learnt["bad_rows"]["count"] == 2
    rows = pa.concat_tables([read_blocks(folder / f) for f in prepared.splits["train"]])
    assert rows.num_rows == 4
    core = {"interactions": {**DECLARED, "min_count": {"user": 50}}}
    with pytest.raises(DataError, match=r"no event is left .*min_count"):
        prepare(TableRecipe("csv", str(path), core, on_bad_rows="skip"))
    path.write_text("user,item,ts\n1,5,\n1,6,\n")
    with pytest.raises(DataError, match=r"no event is left; 2 bad rows .* line 2, column 'ts'"):
        prepare(TableRecipe("csv", str(path), schema, on_bad_rows="skip"))
    path.write_text("\n".join(lines) + "\n")
    split = {"leave_k_out": 9}
    recipe = TableRecipe("csv", str(path), schema, split=split, on_bad_rows="skip")
    told = r"validation split has no rows \(split leave_k_out: 9\); a row needs 1 event at .*"
    with pytest.raises(DataError, match=f"{told}, and users with fewer than 19 events are for tr"):
        prepare(recipe)


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("rating", ["5", "4.5", "great"], "row 2, column 'rating': 'great' is not a number"),
        ("rating", [[5], [4], [5]], "column 'rating' has type list<element: int64>, expected one"),
        ("ts", [[1], [2], [3]], "column 'ts' has type list<element: int64>, expected one value"),
    ],
)
def test_ratings_and_times_that_are_none_are_named(tmp_path, column, values, told):
    columns = {"user": [1, 1, 1], "item": [5, 6, 7], "rating": ["5"] * 3, "ts": [10, 20, 30]}
    pq.write_table(pa.table({**columns, column: values}), tmp_path / "x.parquet")
    schema = {"interactions": {**DECLARED, "rating": "rating", "positive": 4}}
    with pytest.raises(DataError, match=rf"x\.parquet: .*{told}"):
        prepare(TableRecipe("parquet", str(tmp_path / "x.parquet"), schema))


def test_events_that_only_the_last_pass_cannot_read_are_counted(tmp_path):
    table = events(num_rows=300).append_column("price", pa.array(np.arange(300.0)))
    path = tmp_path / "events.parquet"
    pq.write_table(table, path, row_group_size=100, write_page_checksum=True)
    metadata = pq.ParquetFile(path).metadata
    place = metadata.row_group(1).column(table.schema.names.index("price")).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[place + 80] ^= 4
    path.write_bytes(raw)
    schema = {"interactions": DECLARED, "numeric": ["price"]}
    recipe = TableRecipe("parquet", str(path), schema, split="leave_one_out", on_bad_rows="skip")
    bad = prepare(recipe)[1].learnt["bad_rows"]
    assert bad["count"] == 100 and "row group 1: " in bad["examples"][0]


@pytest.mark.parametrize("more", [{}, {"categorical": {"user": {"num_rows": 999}}}])
def test_a_line_that_cannot_be_read_shifts_no_split(tmp_path, monkeypatch, more):
    """Passes read other columns; `price`, which is wrong in one line, only the last one."""
    for module in ("files.read_text", "files.read_json_lines"):
        monkeypatch.setattr(f"runner.data.{module}.BLOCK_BYTES", 500)
    rows = [{**row, "price": 1.5} for row in events(num_rows=200).to_pylist()]
    kept = rows[:100] + rows[101:]
    rows[100] = {**rows[100], "price": "free"}
    prepared = []
    for name, own in (("with", rows), ("without", kept)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in own))
        schema = {"interactions": DECLARED, "numeric": ["price"], "carried": ["row"], **more}
        settings = {"split": "leave_one_out", "on_bad_rows": "skip", "mix": False}
        folder, made = prepare(TableRecipe("jsonl", str(path), schema, **settings))
        assert made.learnt["bad_rows"]["count"] == (name == "with")
        prepared.append(
            {
                split: pa.concat_tables([read_blocks(folder / file) for file in files])
                for split, files in made.splits.items()
            }
        )
    assert prepared[0] == prepared[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"usr": "u"}, "interactions.usr: there is no such key; nearest: 'user'"),
        ({"time": None}, "interactions.time is not set"),
        ({"item": "user"}, "must be different columns"),
        ({"max_length": 0}, "interactions.max_length=0: must be at least 1"),
        ({"max_length": "9"}, "max_length='9': expected a whole number"),
        ({"min_count": {"users": 5}}, "min_count.users: there is no such key"),
        ({"min_count": 5}, "min_count=5: expected"),
        ({"session_gap": "soon"}, "session_gap='soon': expected a time"),
        ({"rating": "rating"}, "positive is not set"),
        ({"below": "negativ"}, "below=negativ: must be one of drop, negative"),
        ({"below": "negative"}, "needs rating and positive"),
        ({"events": ["buy"]}, "events=.*expected {column: NAME"),
        ({"sequences": ["item"]}, "must not name the item"),
        ({"sequences": "action"}, "expected a list of columns"),
    ],
)
def test_mistakes_name_the_key(given, message):
    with pytest.raises(ConfigError, match=message):
        _ = TableRecipe("csv", None, {"interactions": {**DECLARED, **given}}).declared


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("leave_one_uot", "split='leave_one_uot'.*nearest: 'leave_one_out'"),
        ({"leave_k_out": 0}, "leave_k_out=0: expected a number of events"),
        ({"user": {"train": 0.5}}, "user: shares add up to 0.5"),
        ({"time": "ts", "test": "2020-01-01", "validation": 0.1}, "all do"),
        (
            {"time": "ts", "test": "2020-01-01", "validation": "2021-01-01"},
            "validation before test",
        ),
        ({"time": "ts", "test": "2020-01-77"}, "expected a share such as 0.1, a time"),
    ],
)
def test_mistakes_of_splits_name_what_is_expected(split, message):
    with pytest.raises(ConfigError, match=message):
        _ = TableRecipe(
            "csv", None, {"path": str(Path(__file__)), "interactions": DECLARED}, split=split
        ).row_split


def test_a_label_of_the_files_is_that_of_the_rows_even_if_it_has_the_usual_name(tmp_path):
    table = events()
    table = table.append_column("label", pa.array((np.arange(600) % 3 == 0).astype(np.int8)))
    rows, _ = make(table, tmp_path, split=None, schema={"labels": ["label"]})
    assert rows["train"]
    assert all(values["label"] == (row % 3 == 0) for row, values in rows["train"].items())


@pytest.mark.parametrize("unit", ["milliseconds", "microseconds", "yyyymmdd", "dmy"])
def test_times_of_any_form_split_by_dates_and_make_the_rows_of_seconds(tmp_path, unit):
    table, day = events(), np.datetime64("2024-04-20", "D")
    days = [(day + np.timedelta64(ts, "D")).astype(object) for ts in table["ts"].to_pylist()]
    seconds = np.array(days, "M8[s]").astype(np.int64)
    forms = {
        "milliseconds": seconds * 1000,
        "microseconds": seconds * 10**6,
        "yyyymmdd": [int(f"{d:%Y%m%d}") for d in days],
        "dmy": [f"{d:%d.%m.%Y}" for d in days],
    }
    found = []
    for values, form in ((seconds, "seconds"), (forms[unit], unit)):
        path = tmp_path / f"{form}.csv"
        pa.csv.write_csv(table.set_column(2, "ts", pa.array(values)), path)
        schema = {"interactions": {**DECLARED, "time_unit": form}}
        split = {"time": "ts", "validation": "2024-06-03", "test": "2024-06-10"}
        folder, prepared = prepare(TableRecipe("csv", str(path), schema, split=split))
        rows = [pa.concat_tables([read_blocks(folder / f) for f in fs])
                for fs in prepared.splits.values()]  # fmt: skip
        assert all(part.num_rows for part in rows)
        found.append([sorted(map(str, part.to_pylist())) for part in rows])
    assert found[0] == found[1]


def test_the_declaration_in_the_docs_is_right():
    text = (ROOT / "docs" / "interactions.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    declared = parse_schema(yaml.safe_load(block))
    assert [s.name for s in declared.ids if s.is_sequence] == list(
        declared.interactions.sequence_names
    )
    assert declared.interactions.session_gap_s == 1800 and declared.groups == ("user_id",)


def test_a_protocol_of_events_is_refused_without_interactions(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label,user\n1,2\n")
    schema = {"path": str(path), "labels": ["label"], "categorical": {"user": {"num_rows": 3}}}
    with pytest.raises(ConfigError, match="split='leave_one_out': splits the events of users"):
        prepare(TableRecipe("csv", None, schema, split="leave_one_out"))
