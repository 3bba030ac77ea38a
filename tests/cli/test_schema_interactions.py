"""The verb `schema` on tables of interactions: what it recognises, proposes, asks and says."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pandas
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import csv

from runner.cli.schema import schema
from runner.data.columns.schema_file import parse_schema
from runner.data.proposal.columns.column_names import names_item
from runner.data.proposal.columns.interactions import UnclearColumnError
from runner.data.proposal.schema import propose_schema
from runner.errors import DataError, UserError

ROWS = 1000


def columns(**more):
    """Return users, items and times of their own names, and further columns."""
    rng = np.random.default_rng(0)
    usual = {
        "user_id": rng.integers(0, 90, ROWS),
        "item_id": rng.integers(0, 70, ROWS),
        "timestamp": 1_500_000_000 + rng.integers(0, 10**7, ROWS),
    }
    return {name: values for name, values in (usual | more).items() if values is not None}


@pytest.fixture
def propose(tmp_path, capsys):
    """Write a table and run the verb; return the YAML, and what was shown."""

    def run(table, *flags):
        path, out = tmp_path / "x.parquet", tmp_path / "s.yaml"
        pq.write_table(pa.table(table), path)
        out.unlink(missing_ok=True)
        assert schema([str(path), *flags, "--out", str(out)], ()) == 0
        text = out.read_text()
        return yaml.safe_load(text), " ".join(capsys.readouterr().out.split())

    return run


RENAMED = {
    "amazon": ("reviewerID", "parent_asin", "unixReviewTime"),
    "movielens": ("userId", "movieId", "timestamp"),
    "shop": ("customer_id", "product_id", "created_at"),
    "songs": ("uid", "track", "ts"),
    "retailrocket": ("visitorid", "itemid", "timestamp"),
    "recbole": ("user_id:token", "item_id:token", "timestamp:float"),
    "hive": ("clicks_2017.user_id", "clicks_2017.item_id", "clicks_2017.created_at"),
    "no names": ("user", "x", "time"),
}


@pytest.mark.parametrize("names", RENAMED.values(), ids=RENAMED)
def test_user_item_and_time_are_recognised(propose, names):
    table = dict(zip(names, columns().values()))
    proposed, shown = propose(table)
    declared = proposed["interactions"]
    assert (declared["user"], declared["item"], declared["time"]) == names
    assert proposed["split"] == "leave_one_out" and parse_schema(proposed).interactions
    assert f"task: predict the next item ({names[1]}) of each user ({names[0]})" in shown
    assert "next: python -m runner dataset=parquet" in shown and "model=sasrec" in shown
    assert "trainer.eval_every=50 trainer.early_stop.patience=30" in shown  # of few histories
    assert "model.net.every=true model.net.uniform=0" in shown  # of 70 items none need be drawn
    assert "optimizer=adam trainer.batch_size=32" in shown  # larger rates learn them by heart


@pytest.mark.parametrize(("times", "is_many"), [(20, False), (36, True)])
def test_many_histories_are_learnt_at_larger_rates_which_end_at_zero(propose, times, is_many):
    """Few are learnt by heart: 20 times make 2,200 histories that do not overlap, 36 make 3,960."""
    many = {name: np.tile(values, times) for name, values in columns().items()}
    many["user_id"] += 90 * np.repeat(np.arange(times), ROWS)
    _, shown = propose(many)
    rates = "optimizer.dense.lr=0.002 optimizer.sparse.lr=0.01 scheduler=wsd " * is_many
    assert f"model=sasrec optimizer=adam {rates}trainer.batch_size=32" in shown


def test_whole_numbers_of_text_files_stay_numbers_so_that_items_can_be_named(tmp_path, capsys):
    path, out = tmp_path / "x.csv", tmp_path / "s.yaml"
    csv.write_csv(pa.table(columns(user_id=[f"u{n % 90}" for n in range(ROWS)])), path)
    assert schema([str(path), "--out", str(out)], ()) == 0
    ids = {spec.name: spec.input for spec in parse_schema(yaml.safe_load(out.read_text())).ids}
    assert ids == {"user_id": "auto", "item_id": "integer", "history": "integer"}
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (item,) = [words for words in rows if words[:1] == ["item_id"]]
    assert "interactions encode=vocabulary input=integer (the item)" in " ".join(item)


def test_whole_numbers_with_leading_zeros_are_codes_and_stay_texts(tmp_path, capsys):
    path, out = tmp_path / "x.csv", tmp_path / "s.yaml"
    csv.write_csv(pa.table(columns(item_id=[f"{n % 70:06d}" for n in range(ROWS)])), path)
    path.write_text(path.read_text().replace('"', ""))
    assert schema([str(path), "--out", str(out)], ()) == 0
    assert (
        "item_id: texts, since some have leading zeros, such as 000000" in capsys.readouterr().out
    )
    ids = {spec.name: spec.input for spec in parse_schema(yaml.safe_load(out.read_text())).ids}
    assert ids == {"user_id": "integer", "item_id": "auto", "history": "auto"}


def test_of_many_items_negatives_are_drawn(propose):
    _, shown = propose(columns(item_id=np.arange(ROWS) * 3), "--item", "item_id")
    assert "model.net.every" in shown
    many = {name: np.tile(values, 4) for name, values in columns().items()}
    _, shown = propose(many | {"item_id": np.arange(4 * ROWS) * 3})
    assert "model=sasrec" in shown and "model.net.every" not in shown


def test_a_rating_says_both_tasks(propose):
    table = columns(rating=np.arange(ROWS) % 5 + 1.0)
    proposed, shown = propose(table)
    assert list(proposed["labels"]) == ["rating"]
    assert "task: predict rating" in shown and "--task next_item proposes" in shown
    proposed, shown = propose(table, "--task", "next_item")
    declared = proposed["interactions"]
    assert (declared["rating"], declared["positive"]) == ("rating", 4)
    assert "--label rating proposes to predict it instead" in shown
    assert "rating below 4 are left out" in shown
    proposed, _ = propose(columns(click=np.arange(ROWS) % 2), "--task=next_item")
    assert proposed["interactions"]["positive"] == 1


def test_times_in_milliseconds_have_their_unit(propose):
    table = columns(timestamp=columns()["timestamp"] * 1000)
    proposed, _ = propose(table)
    assert proposed["interactions"]["time_unit"] == "milliseconds"


def test_seconds_with_fractions_are_times(propose):
    proposed, _ = propose(columns(timestamp=columns()["timestamp"] + 0.25))
    assert proposed["interactions"]["time"] == "timestamp"
    assert "time_unit" not in proposed["interactions"]


def test_beside_a_named_user_and_item_the_only_times_are_those_whatever_they_are_called(propose):
    names = ("Kunde", "Artikel", "Gekauft (ms)")
    table = dict(zip(names, columns(timestamp=columns()["timestamp"] * 1000).values()))
    proposed, _ = propose(table, "--user", "Kunde", "--item", "Artikel")
    declared = proposed["interactions"]
    assert (declared["time"], declared["time_unit"]) == (names[2], "milliseconds")


def test_of_a_log_of_sessions_without_users_the_session_is_the_user(propose):
    table = columns(user_id=None, session_id=columns()["user_id"], category=np.arange(ROWS) % 9)
    proposed, _ = propose(table)
    assert proposed["interactions"]["user"] == "session_id"
    for name in ("user_id", "user.id"):  # also within an object
        proposed, _ = propose({**table, name: table["session_id"] // 2})
        assert proposed["interactions"]["user"] == name


def test_where_most_users_are_unknown_and_a_session_has_one_day_its_events_are_in_its_order(
    propose,
):
    """As in Diginetica's views: two of three without a user, a day, and milliseconds from 0."""
    table = columns(timestamp=None, session_id=columns()["user_id"])
    known = np.arange(ROWS) % 3 == 0
    day = np.array(["2016-05-09"], "M8[D]") + table["session_id"] % 30
    frames = {"timeframe": np.random.default_rng(1).integers(0, 10**6, ROWS)}
    table |= {"user_id": pa.array(table["user_id"], mask=~known), "eventdate": day}
    proposed, shown = propose({**table, **frames, "price": np.arange(ROWS) / 7})
    parts = {"user": "session_id", "item": "item_id", "time": "timeframe"}
    assert proposed["interactions"].items() >= parts.items()
    assert "eventdate: for most session_id all events have the same time" in shown
    assert "user_id: is missing in 66.6% of the events, so each session_id has a history" in shown
    proposed, shown = propose({**table, "watch_time": frames["timeframe"]})
    assert proposed["interactions"]["time"] == "eventdate"
    assert (
        "nearly all histories would be empty: --time NAME names the column that orders the "
        "events, such as the" in shown
    )
    proposed, shown = propose({**table, **frames}, "--user", "user_id", "--time", "eventdate")
    assert proposed["interactions"].items() >= {"user": "user_id", "time": "eventdate"}.items()
    assert "have the same time" not in shown and "is missing in" not in shown


def test_a_row_for_each_user_with_ids_in_a_text_is_told_how_it_becomes_events(propose):
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, 90, rng.integers(5, 40)))) for _ in range(ROWS)]
    proposed, shown = propose({"user": np.arange(ROWS), "items": texts})
    assert proposed["categorical"]["items"]["separator"] == " "
    way = "table.assign(items=table['items'].str.split(' ')).explode(['items'])"
    assert f"pandas makes events of lists: {way}" in shown


def test_a_row_for_each_user_with_lists_is_told_how_it_becomes_events(propose):
    lists = [[1_600_000_000 + n, 1_600_000_100 + n] for n in range(ROWS)]
    _, shown = propose({"user": np.arange(ROWS), "items": lists, "ts": lists})
    assert "pandas makes events of lists: table.explode(['items', 'ts'])" in shown


@pytest.mark.parametrize("as_text", [False, True], ids=["lists", "texts"])
def test_users_of_one_row_each_are_told_how_the_lists_beside_them_become_events(
    propose, tmp_path, monkeypatch, as_text
):
    rng = np.random.default_rng(0)
    lists = [[f"i{item}" for item in rng.integers(0, 70, n % 5 + 1)] for n in range(ROWS)]
    items = [f"i{item}" for item in rng.integers(0, 70, ROWS)]
    past = [" ".join(ids) for ids in lists] if as_text else lists
    table = columns(user_id=np.arange(ROWS), item_id=items, history=[None, *past[1:]])
    _, shown = propose(table)
    told = "each user_id has one row, and a history has the other events of its user"
    [code] = re.findall(told + r"; where history has them, with pandas, `(.*?)` makes them", shown)
    [words] = re.findall(r"`python -m runner schema events.parquet (.*?)` reads those", shown)
    monkeypatch.chdir(tmp_path)
    exec(code, {"t": pd.read_parquet("x.parquet")})
    events = pq.read_table("events.parquet").to_pydict()
    parts, shown = propose(events, *words.split())
    assert parts["interactions"].items() >= {"item": "item_id", "time": "step"}.items()
    assert "has one row" not in shown
    made = pd.DataFrame(events).sort_values("step").groupby("user_id")["item_id"].agg(list)
    assert made.tolist() == [
        [*ids, item] for ids, item in zip([[], *lists[1:]], items, strict=True)
    ]


def test_events_that_stand_several_times_are_told_with_what_leaves_one_of_each(propose):
    """As in Delicious, where each tag of a bookmark is a row."""
    table = {name: np.repeat(values, 2) for name, values in columns().items()}
    _, shown = propose(table | {"tag_name": np.arange(2 * ROWS) % 70})
    told = "50.0% of the events have the user_id, item_id and timestamp of another, as where each"
    assert told in shown
    [code] = re.findall(r"with pandas, `t = (.*?)` leaves one of each", shown)
    left = eval(code, {"t": pd.DataFrame(table)})
    assert len(left) == ROWS
    _, shown = propose(left.to_dict("list"))
    assert "of another" not in shown


def test_the_item_of_an_event_is_no_list(propose):
    table = columns(item_id=[["a", "b"]] * ROWS)
    with pytest.raises(UserError, match=r"--item item_id: has a list in each row.*t\.explode"):
        propose(table, "--item", "item_id")
    shown = [" ".join(f"N{n % m}-{m % 2}" for m in (5, 7, 9)) for n in range(ROWS)]
    _, told = propose(columns(item_id=shown), "--item", "item_id")
    assert "item_id: has several items with a label each" in told


def test_lists_of_other_lengths_are_not_made_rows_together(propose):
    # pandas refuses to
    rng = np.random.default_rng(0)
    lists = [list(range(n)) for n in rng.integers(1, 9, ROWS)]
    table = {"user": np.arange(ROWS), "items": lists, "tags": [list("ab")] * ROWS}
    _, shown = propose(table)
    assert "pandas makes events of lists: table.explode(['items'])" in shown
    labelled = [" ".join(f"N{item}-{item % 2}" for item in row) for row in lists]
    history = [" ".join(f"N{item}" for item in rng.integers(0, 20, 9)) for _ in range(ROWS)]
    _, shown = propose({"user": np.arange(ROWS), "history": history, "shown": labelled})
    assert "shown: has several items with a label each" in shown and "table.explode" not in shown


def test_other_columns_are_left_out_and_said(propose):
    proposed, shown = propose(columns(category=np.arange(ROWS) % 7))
    assert set(proposed) == {"path", "split", "interactions"}
    assert "interactions.sequences adds ids to the histories" in shown


def test_what_may_be_the_type_of_an_event_is_told_how_to_declare_it(propose):
    kinds = np.resize(["view", "cart", "buy"], ROWS)
    _, shown = propose(columns(event_type=kinds, price=np.arange(ROWS) / 7))
    [told] = [part for part in shown.split("event_type")[1:] if "interactions.events" in part]
    assert "with train_on: every" in told
    assert shown.count("interactions.events") == 1  # price is no type


def test_what_each_user_has_one_value_of_is_not_taken_for_the_type_of_an_event(propose):
    users = columns()["user_id"]
    ages = np.array(["15-24", "25-34", "35-54"])[users % 3]
    shown = propose(columns(age_group=ages))[1]
    assert "it describes the user_id, each of which has one value" in shown
    assert "interactions.events" not in shown
    each_once = columns(user_id=np.arange(ROWS), age_group=ages)  # nothing can be told of these
    assert "interactions.events" in propose(each_once)[1]


def test_what_each_user_has_one_value_of_is_not_taken_for_the_item(propose):
    table = columns(pin_code=columns()["user_id"] % 8)
    assert propose(table)[0]["interactions"]["item"] == "item_id"
    with pytest.raises(UnclearColumnError, match="may be the item: item_id, pin_code"):
        propose(columns(pin_code=np.arange(ROWS) % 8))


def test_the_type_of_an_event_is_not_taken_for_its_user(propose):
    kinds = np.random.default_rng(2).choice(["view", "cart", "buy"], ROWS)
    sessions = [f"{n:08x}" for n in np.random.default_rng(3).integers(0, 90, ROWS)]
    proposed, _ = propose(columns(user_id=None, session_id=sessions, event_type=kinds))
    assert proposed["interactions"]["user"] == "session_id"


def test_a_table_without_times_or_items_is_no_table_of_interactions(propose):
    for table in (columns(timestamp=None), columns(item_id=None, price=np.linspace(0, 9, ROWS))):
        proposed, shown = propose(table)
        assert "interactions" not in proposed and "no column looks like the label" in shown


def test_the_only_times_of_a_table_are_those_of_its_events_whatever_they_are_called(propose):
    at = np.datetime64("2025-03-01T10:00:00") + np.arange(ROWS).astype("timedelta64[m]")
    proposed, _ = propose(columns(timestamp=None, when=at))
    assert proposed["interactions"]["time"] == "when"
    for birth in ("birth_date", "DOB"):
        proposed, _ = propose(columns(timestamp=None, **{birth: at}))
        assert "interactions" not in proposed and "random" in proposed["split"]
    proposed, _ = propose(columns(when=at))
    assert proposed["interactions"]["time"] == "timestamp"


def test_the_finest_time_orders_the_events(propose):
    """As of the export of Google Analytics, which has the day before the microsecond."""
    at = np.datetime64("2025-03-01T10:00:00") + np.arange(ROWS).astype("timedelta64[m]")
    table = columns(timestamp=None, event_date=at.astype("datetime64[D]"), event_timestamp=at)
    assert propose(table)[0]["interactions"]["time"] == "event_timestamp"
    gaps = pa.array(at, mask=np.arange(ROWS) % 3 == 0)
    assert propose(table | {"event_timestamp": gaps})[0]["interactions"]["time"] == "event_date"


def test_events_without_a_user_are_left_out_by_the_command(propose):
    users = [None if i % 100 == 3 else f"u{i % 40}" for i in range(ROWS)]
    assert "dataset.on_bad_rows=skip" in propose(columns(user_id=users))[1]
    assert "on_bad_rows" not in propose(columns())[1]


def test_several_items_are_refused_with_the_flag_and_taken_by_it(propose):
    table = columns(product_id=np.arange(ROWS) % 50)
    with pytest.raises(UnclearColumnError, match="may be the item: item_id, product_id; --item"):
        propose(table)
    proposed, _ = propose(table, "--item", "product_id")
    assert proposed["interactions"]["item"] == "product_id"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--task", "nextitem"],
            "--task nextitem: one of next_item, label, regression, classes; nearest: 'next_item'",
        ),
        (["--user", "user"], "--user user: no such column; nearest: 'user_id'"),
        (["--task", "next_item", "--drop", "timestamp"], "no column looks like the time; --time"),
    ],
)
def test_wrong_words_are_named(propose, flags, message):
    with pytest.raises(UserError, match=message):
        propose(columns(), *flags)


def test_on_a_terminal_the_item_is_asked(tmp_path):
    path, out = tmp_path / "x.parquet", tmp_path / "s.yaml"
    pq.write_table(pa.table(columns(product_id=np.arange(ROWS) % 50)), path)
    main, side = pty.openpty()
    command = [sys.executable, "-m", "runner", "schema", str(path), "--out", str(out)]
    child = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, close_fds=True)
    os.close(side)
    os.write(main, b"produkt\nproduct_id\n")
    shown = b""
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:  # how Linux ends what was written to a terminal
        pass
    os.close(main)
    assert child.wait() == 0, shown
    assert b"nearest: 'product_id'" in shown
    assert yaml.safe_load(out.read_text())["interactions"]["item"] == "product_id"


def test_names_of_items_are_those_and_no_others():
    yes = ("item", "itemId", "movie_ids", "parent_asin", "song", "articles", "ad_id", "video_key")
    yes += ("itemid", "productids", "item_id:token")
    no = ("item_count", "user_id", "price", "item_category", "movie_year", "id", "code")
    assert [n for n in yes if not names_item(n)] == [n for n in no if names_item(n)] == []


def test_the_only_outcome_of_users_and_items_is_the_label_whatever_its_name(propose):
    rng = np.random.default_rng(5)
    stars, pieces = rng.integers(1, 9, ROWS) / 2, rng.geometric(0.7, ROWS)
    of_user, of_item = columns()["user_id"] % 50 / 7, columns()["item_id"] % 30 / 7
    described = {"height": of_user, "price": of_item, "category_id": np.arange(ROWS) % 9}
    for time in (None, columns()["timestamp"]):
        proposed, shown = propose(columns(timestamp=time, score=stars, **described))
        assert list(proposed["labels"]) == ["score"] and "next: python" in shown
        assert "no other column may be what became of a user and an item" in shown
        proposed, _ = propose(columns(timestamp=time, pieces=pieces))
        assert proposed.get("labels", {}).keys() == ({"pieces"} if time is None else set())
    proposed, _ = propose(columns(timestamp=None, score=stars, pieces=pieces))
    assert "labels" not in proposed  # either may be
    for name in ("month", "step", "place"):  # with times, whole numbers without such a name
        assert "interactions" in propose(columns(**{name: np.arange(ROWS) % 12}))[0]
    assert "labels" not in propose(columns(timestamp=None, month=np.arange(ROWS) % 12))[0]
    at = columns()["timestamp"]  # not named like a time
    assert "interactions" in propose(columns(timestamp=None, f1=at, pieces=pieces), "--time=f1")[0]
    proposed, _ = propose(columns(score=stars), "--task=next_item")
    assert "interactions" in proposed


def test_users_and_items_without_a_time_are_told_how_the_next_item_is_proposed(propose):
    table = columns(timestamp=None, place=np.arange(ROWS) % 50)
    _, shown = propose(table)
    assert "there are users and items, but no column looks like a time: --task next_item" in shown
    proposed, shown = propose(table, "--task", "next_item", "--time", "place")
    assert proposed["interactions"]["time"] == "place"
    assert "no column looks like a time" not in shown


def test_users_and_times_without_an_item_are_told_which_column_may_be_one(propose):
    places = {"spot_no": np.arange(ROWS) % 50, "lat": np.arange(ROWS) / 7, "lon": np.ones(ROWS) / 3}
    proposed, shown = propose(columns(item_id=None, **places))
    assert "interactions" not in proposed
    assert (
        "named like an item: --task next_item --item spot_no proposes to predict the next" in shown
    )
    proposed, shown = propose(columns(item_id=None, **places), "--task", "next_item")
    assert proposed["interactions"]["item"] == "spot_no" and "named like an item" not in shown


def test_neither_a_session_nor_a_step_in_it_is_taken_for_the_item(propose):
    """As in Trivago's log, where the item is called a reference."""
    table = {"session_id": [f"s{n // 9}" for n in range(ROWS)], "step": np.arange(ROWS) % 9}
    table["reference"] = np.arange(ROWS) % 70
    proposed, _ = propose(columns(item_id=None, **table), "--task", "next_item")
    assert proposed["interactions"]["item"] == "reference"


def test_sessions_with_a_list_of_objects_are_told_how_they_become_events(tmp_path, propose):
    """As in Otto's sessions, whose events are objects of an item, a time and a type."""
    rng, path = np.random.default_rng(0), tmp_path / "sessions.jsonl"
    times = np.sort(rng.integers(0, 10**9, (200, 9))) + 1_659_304_800_025
    rows = [
        {"session": n, "events": [{"aid": int(rng.integers(90)), "ts": int(t)} for t in own]}
        for n, own in enumerate(times)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match=r"no column to learn from: .* With pandas, `t = ") as told:
        schema([str(path)], ())
    recipe = str(told.value).split("`")[1].replace("rows.parquet", str(tmp_path / "rows.parquet"))
    exec(recipe, {"t": pandas.read_json(path, lines=True), "pandas": pandas})
    proposed, _ = propose(pq.read_table(tmp_path / "rows.parquet"))
    parts = {"user": "session", "item": "aid", "time": "ts", "time_unit": "milliseconds"}
    assert proposed["interactions"].items() >= parts.items()


def playlists(uri="track_uri", place="pos"):
    """Return lists of songs in their order, without times, as in the Million Playlist Dataset."""
    rng = np.random.default_rng(0)
    return {
        "playlist_id": [f"pl{row // 10:05d}" for row in range(ROWS)],
        place: np.arange(ROWS) % 10,
        uri: [f"spotify:track:{n}" for n in rng.integers(0, 70, ROWS)],
        "duration_ms": rng.integers(120, 400, ROWS) * 1000,
    }


@pytest.mark.parametrize("flags", [(), ("--task", "next_item")])
@pytest.mark.parametrize("place", ["pos", "position", "track_index", "step"])
def test_playlists_are_histories_in_the_order_of_the_places_of_their_songs(propose, place, flags):
    proposed, shown = propose(playlists(place=place), *flags)
    parts = ("user", "item", "time")
    expected = ("playlist_id", "track_uri", place)
    assert tuple(proposed["interactions"][part] for part in parts) == expected
    assert "next: python -m runner" in shown and "model=sasrec" in shown


def test_a_place_that_users_have_several_times_gives_no_order(propose):
    table = columns(timestamp=None, position=np.arange(ROWS) % 5)
    proposed, shown = propose(table)
    assert "interactions" not in proposed and "no column looks like a time" in shown


@pytest.mark.parametrize("name", ["sales_rank", "playtime_forever"])
def test_numbers_of_more_values_than_a_user_has_events_are_no_places(propose, name):
    proposed, _ = propose(columns(timestamp=None, **{name: np.arange(ROWS) * 7}))
    assert "interactions" not in proposed


def test_an_address_is_the_item_only_where_nothing_else_is(propose):
    urls = [f"/{n}" for n in columns()["item_id"] % 9]
    assert propose(columns(item_url=urls))[0]["interactions"]["item"] == "item_id"


def test_a_part_that_is_not_found_is_told_with_columns_that_may_be_it(propose):
    table = {"mix": playlists()["playlist_id"], **playlists()}
    del table["playlist_id"]
    with pytest.raises(UserError, match="looks like the user; --user names it, such as mix"):
        propose(table, "--task", "next_item")


def test_beside_a_column_that_is_named_like_the_type_of_an_event_no_other_is_taken_for_it(tmp_path):
    rng = np.random.default_rng(1)
    kinds, systems = rng.choice(["view", "buy"], ROWS), rng.choice(["ios", "web"], ROWS)
    genres = np.array(["rock", "pop", "jazz"])[columns()["item_id"] % 3]
    for more, expected in (
        ({"os": systems}, ["os"]),
        ({"event_type": kinds, "os": systems}, ["event_type"]),
        ({"genre": genres}, []),  # of the item
    ):
        pq.write_table(pa.table(columns(**more)), tmp_path / "x.parquet")
        roles = propose_schema(str(tmp_path / "x.parquet")).columns
        assert [f.name for f, role in roles if "type of an event" in role.reason] == expected
