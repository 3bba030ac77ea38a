"""Dates that are not ISO 8601 split a table by time and give its parts, or are asked about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb
from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError, UserError

ROWS = 2000
START = datetime(2019, 3, 1, tzinfo=UTC)
FORMS = {
    "dmy": "%d/%m/%Y %H:%M",
    "ymd": "%y-%m-%d %H:%M",
    "mdy": "%m/%d/%Y %I:%M %p",
    "yymmddhh": "%y%m%d%H",
    "yyyymmdd": "%Y%m%d",
    "milliseconds": "",
}


def write(folder: Path, pattern: str, *, days: int = 40) -> tuple[str, np.ndarray]:
    """Write shuffled rows whose click follows the hour; return the path and their seconds."""
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, days * 86400, ROWS)
    moments = [START + timedelta(seconds=int(s)) for s in seconds]
    texts = [m.strftime(pattern) if pattern else str(int(m.timestamp()) * 1000) for m in moments]
    click = [int(m.hour > 11) ^ int(rng.random() < 0.3) for m in moments]
    lines = [f"{t},{u},{c}" for t, u, c in zip(texts, rng.integers(0, 50, ROWS), click)]
    path = folder / "clicks.csv"
    path.write_text("\n".join(["event_time,user_id,click", *lines]) + "\n")
    return str(path), seconds


def propose(path: str, out: Path, *flags: str) -> dict:
    assert schema_verb([path, "--out", str(out), *flags], ()) == 0
    return yaml.safe_load(out.read_text())


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_found_proposed_and_splits_the_rows_by_time(form, tmp_path):
    path, seconds = write(tmp_path, FORMS[form])
    proposed = propose(path, tmp_path / "s.yaml")
    assert proposed["split"] == {
        "time": "event_time", "input": form, "validation": 0.1, "test": 0.1,
    }  # fmt: skip
    parts = proposed["categorical"]
    assert parts["event_time_weekday"]["input"] == form
    assert ("event_time_hour" in parts) is (form != "yyyymmdd")
    recipe = TableRecipe(format="csv", path=None, schema=str(tmp_path / "s.yaml"))
    data = open_table(recipe, window_rows=1 << 14, prefetch=0)
    unit = {"yymmddhh": 3600, "yyyymmdd": 86400}.get(form, 60)
    times = np.sort(seconds // unit)
    first_test = np.quantile(times, 0.9, method="higher")
    assert data.num_rows["test"] == (times >= first_test).sum()
    if form != "yyyymmdd":
        (batch,) = data.batches("train", batch_size=ROWS)
        hours = batch.sparse["event_time_hour"].values().numpy()
        labels = batch.labels_BT[:, 0].numpy()
        late = labels[hours > hours.min() + 11].mean()
        assert late > 0.6 > 0.4 > labels[hours <= hours.min() + 11].mean()


@pytest.mark.parametrize("pattern", ["%Y-%m", "%Y-%m-01"])
def test_months_split_the_rows_and_have_no_weekdays(pattern, tmp_path):
    path, seconds = write(tmp_path, pattern, days=1800)
    proposed = propose(path, tmp_path / "s.yaml")
    assert proposed["split"] == {"time": "event_time", "validation": 0.1, "test": 0.1}
    assert list(proposed["categorical"]) == ["user_id"]
    recipe = TableRecipe(format="csv", path=None, schema=str(tmp_path / "s.yaml"))
    data = open_table(recipe, window_rows=1 << 14, prefetch=0)
    days = np.datetime64(START.replace(tzinfo=None), "s") + seconds
    months = np.sort(days.astype("M8[M]").astype(int))
    first_test = np.quantile(months, 0.9, method="higher")
    assert data.num_rows["test"] == (months >= first_test).sum()


def test_a_length_of_a_split_counts_real_time_in_such_a_form(tmp_path):
    path, seconds = write(tmp_path, FORMS["yymmddhh"])
    proposed = propose(path, tmp_path / "s.yaml")
    proposed["split"] = {"time": "event_time", "input": "yymmddhh", "test": "7d"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(proposed))
    recipe = TableRecipe(format="csv", path=None, schema=str(tmp_path / "s.yaml"))
    data = open_table(recipe, window_rows=1 << 14, prefetch=0)
    hours = seconds // 3600
    assert data.num_rows["test"] == (hours >= hours.max() - 7 * 24).sum()


def test_dates_that_may_have_the_day_or_the_month_first_are_asked_about(tmp_path, capsys):
    path, _ = write(tmp_path, FORMS["dmy"], days=12)  # the 1st to the 12th of March
    proposed = propose(path, tmp_path / "asked.yaml")
    said = capsys.readouterr().out
    assert "random" in proposed["split"]
    assert (
        "event_time: its values do not tell whether the day or the month comes first; "
        "--time event_time=dmy or event_time=mdy says it"
    ) in said
    proposed = propose(path, tmp_path / "said.yaml", "--time", "event_time=dmy")
    assert proposed["split"]["input"] == "dmy"
    assert proposed["categorical"]["event_time_hour"]["input"] == "dmy"
    with pytest.raises(UserError, match="--time event_time: its values do not tell"):
        propose(path, tmp_path / "x.yaml", "--time", "event_time")
    with pytest.raises(UserError, match=r"day is no form of times; .*forms are .*dmy, mdy, ymd"):
        propose(path, tmp_path / "x.yaml", "--time", "event_time=day")
    with pytest.raises(UserError, match="has no times in the form milliseconds"):
        propose(path, tmp_path / "x.yaml", "--time", "event_time=milliseconds")


def test_how_long_it_took_until_an_event_is_no_time_that_splits(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(size=ROWS), "time": rng.integers(0, 3000, ROWS)}
    for label, splits in (("event", False), ("died", False), ("click", True)):
        path = str(tmp_path / f"{label}.parquet")
        pq.write_table(pa.table(table | {label: (table["time"] < 900).astype(int)}), path)
        proposed = propose(path, tmp_path / f"{label}.yaml")
        assert ("time" in proposed["split"]) is splits
        assert "time" not in proposed["numeric"]
        note = "time: may be the time until the label"
        assert (note in capsys.readouterr().out) is not splits
    path = str(tmp_path / "survival.parquet")
    pq.write_table(pa.table(table | {"status": (table["time"] < 900).astype(int)}), path)
    proposed = propose(path, tmp_path / "survival.yaml", "--label", "status")
    assert "time" not in proposed["split"] and note in capsys.readouterr().out
    proposed = propose(str(tmp_path / "event.parquet"), tmp_path / "x.yaml", "--time", "time")
    assert proposed["split"]["time"] == "time"


@pytest.mark.parametrize("unit", [30.4, 30], ids=["months with fractions", "few whole months"])
def test_how_long_it_took_is_no_feature_beside_the_event_either(unit, tmp_path, capsys):
    rng = np.random.default_rng(0)
    days = rng.integers(1, 1800, ROWS)
    died = (rng.random(ROWS) < np.where(days < 900, 0.8, 0.3)).astype(int)
    time = days / unit if unit % 1 else days // unit
    table = {"time": time, "age": rng.normal(size=ROWS), "status": died}
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table(table), path)
    proposed = propose(path, tmp_path / "x.yaml", "--label", "status")
    assert "time" not in {*proposed["numeric"], *proposed.get("categorical", {})}
    assert "time: may be the time until the label" in capsys.readouterr().out
    proposed = propose(path, tmp_path / "y.yaml", "--label", "status", "--numeric", "time")
    assert "time" in proposed["numeric"]
    table["click"] = table.pop("status")
    pq.write_table(pa.table(table), path)
    proposed = propose(path, tmp_path / "z.yaml", "--label", "click")
    assert "time" in {*proposed["numeric"], *proposed.get("categorical", {})}


@pytest.mark.parametrize(("spread", "splits"), [(200, False), (5000, True)])
def test_a_time_with_which_a_number_to_be_predicted_rises_splits_no_rows(spread, splits, tmp_path):
    rng = np.random.default_rng(0)
    time = rng.integers(100, 9900, ROWS)  # of a race, of which `net` lacks the way to the line
    table = {
        "age": rng.normal(size=ROWS),
        "time": time,
        "net": time - rng.integers(0, spread, ROWS),
    }
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table(table), path)
    proposed = propose(path, tmp_path / "x.yaml", "--label", "net", "--task", "regression")
    assert ("time" in proposed["split"]) is splits
    proposed = propose(path, tmp_path / "y.yaml", "--label", "net", "--time", "time")
    assert proposed["split"]["time"] == "time"


@pytest.mark.parametrize(
    ("first", "last", "splits"),
    [(340, 984, False), (28_800, 72_000, False), (1, 984, True), (90_000, 99_000, True)],
)
def test_a_time_of_day_in_minutes_or_seconds_is_a_number(first, last, splits, tmp_path, capsys):
    rng = np.random.default_rng(0)
    path = str(tmp_path / "x.parquet")
    time = first + 2 * rng.integers(0, (last - first) // 2, ROWS)
    table = {"Time": time, "click": rng.integers(0, 2, ROWS)}
    pq.write_table(pa.table({**table, "age": rng.normal(size=ROWS)}), path)
    proposed = propose(path, tmp_path / "x.yaml")
    assert ("time" in proposed["split"]) is splits
    assert ("Time" in proposed["numeric"]) is not splits
    note = "Time: is named like a time, but may be a count; --time Time splits the rows by it"
    assert (note in capsys.readouterr().out) is not splits


def test_times_of_day_are_no_times_that_could_split(tmp_path):
    (tmp_path / "x.csv").write_text(
        "time,user,click\n" + "".join(f"{n % 24:02}:30,u{n % 5},{n % 2}\n" for n in range(200))
    )
    with pytest.raises(UserError, match="--time time: has no times; forms are seconds"):
        propose(str(tmp_path / "x.csv"), tmp_path / "x.yaml", "--time", "time")


def test_a_split_in_the_wrong_form_is_refused_with_what_to_write(tmp_path):
    path, _ = write(tmp_path, FORMS["dmy"])
    proposed = propose(path, tmp_path / "s.yaml")
    proposed["split"].pop("input")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(proposed))
    recipe = TableRecipe(format="csv", path=None, schema=str(tmp_path / "s.yaml"))
    with pytest.raises(DataError, match=r"event_time.*is none in ISO 8601.*`input`: dmy, mdy, ymd"):
        recipe.check()


@pytest.mark.parametrize(
    ("form", "said", "said_of_split"),
    [
        (
            "%m/%d/%Y",
            "no times in the form dmy in 1.. of 300 rows; .*; --time event_time=mdy",
            None,
        ),
        ("%Y/%m/%d", "no times in the form dmy; .*; --time event_time=ymd reads", "; ymd reads it"),
        (
            "%Y-%m-%d",
            "no times in the form dmy; .*; --time event_time reads",
            "; without one it is read",
        ),
    ],
)
def test_a_form_that_others_are_in_is_refused_with_that_of_the_times(
    tmp_path, form, said, said_of_split
):
    days = [datetime.fromtimestamp(n * 86_400 + 1.6e9, UTC).strftime(form) for n in range(300)]
    path = str(tmp_path / "x.parquet")  # as texts: Arrow takes ISO dates of CSV files for dates
    rows = {"user": [f"u{n % 7}" for n in range(300)], "label": [n // 3 % 2 for n in range(300)]}
    pq.write_table(pa.table({"event_time": days, **rows}), path)
    with pytest.raises(UserError, match=f"--time event_time: has {said}"):
        propose(path, tmp_path / "s.yaml", "--time", "event_time=dmy")
    schema = {"labels": ["label"], "categorical": {"user": {"encode": "vocabulary"}}}
    schema["split"] = {"time": "event_time", "input": "dmy", "validation": "9d", "test": "9d"}
    recipe = TableRecipe(format="parquet", path=path, schema=schema)
    if said_of_split is not None:  # a split is refused at once where no time is in its form
        with pytest.raises(DataError, match=f"is none in dmy; .*`input`: .*{said_of_split}"):
            recipe.check()


def test_large_texts_are_times_as_well(tmp_path):
    """Pandas writes all texts as such since its version 3."""
    days = [f"2026-{1 + n // 28:02d}-{1 + n % 28:02d}" for n in range(280)]
    columns = {"user_id": ["a", "b"] * 140, "day": days}
    table = pa.table({name: pa.array(texts, pa.large_string()) for name, texts in columns.items()})
    pq.write_table(table.append_column("click", pa.array([0, 1] * 140)), tmp_path / "x.parquet")
    proposed = propose(str(tmp_path / "x.parquet"), tmp_path / "s.yaml")
    assert proposed["split"] == {"time": "day", "validation": 0.1, "test": 0.1}
    recipe = TableRecipe(format="parquet", path=None, schema=str(tmp_path / "s.yaml"))
    data = open_table(recipe, window_rows=1 << 14, prefetch=0)
    assert data.num_rows == {"train": 224, "validation": 28, "test": 28}


DAY_S = 86_400
TWO_FORMS = ("%d/%m/%Y", "%Y-%m-%d %H:%M")
MAY_BE_TIMES = {
    "seconds": ("c7", lambda s: s, "could be times from 2019-03-01 to 2019-04-09; --time c7 "),
    "milliseconds": ("m", lambda s: s * 1000 + 7, "could be times from 2019-03-01 to 2019-04-09"),
    "fractions": ("t", lambda s: s + 0.25, "could be times from 2019-03-01 to 2019-04-09"),
    "count": ("day", lambda s: s // DAY_S, "is named like a time, but may be a count; --time day"),
    "texts": ("time", lambda s: [f"{x // 7}h{x}" for x in s], "are in no known form"),
    "blanks": ("read_at", lambda s: ["", *(f"{x // 7}h" for x in s[1:])], "such as '22"),
    "forms": (
        "c7",
        lambda s: [f"{datetime.fromtimestamp(x, UTC):{TWO_FORMS[x % 2]}}" for x in s],
        "are times, but not all have the same form",
    ),
    "ids": ("order_id", lambda s: s, ""),
    "hours": ("hour", lambda s: s // 3600 % 24, ""),
    "seconds of play": ("play_time", lambda s: s % 999, ""),
    "starts": (
        "start_date",
        lambda s: pa.array(s // DAY_S * DAY_S, pa.timestamp("s")),
        "start_date: may be when a row came about; --time start_date splits the rows by it",
    ),
    "births": ("birth_date", lambda s: s, ""),
    "times of day": ("time", lambda s: [f"{x // 3600 % 24:02}:{x // 60 % 60:02}" for x in s], ""),
}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["start_time"], "start_time"),
        (["start_time", "end_time"], "start_time"),
        (["start_time", "viewed_at"], "viewed_at"),
        (["start_time", "membership_start"], None),  # which of the two?
    ],
)
def test_a_start_is_the_time_of_the_rows_if_nothing_else_is(names, found, tmp_path):
    rng = np.random.default_rng(0)
    seconds = int(START.timestamp()) + rng.integers(0, 40 * DAY_S, ROWS)
    times = {name: pa.array(seconds + 60 * n, pa.timestamp("s")) for n, name in enumerate(names)}
    table = {"user": rng.integers(0, 50, ROWS), **times, "click": rng.integers(0, 2, ROWS)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    proposed = propose(str(tmp_path / "x.parquet"), tmp_path / "s.yaml")
    assert proposed["split"].get("time") == found
    assert (f"{found}_hour" in proposed["categorical"]) == bool(found)


@pytest.mark.parametrize(
    ("name", "is_of_row"), [("host_since", False), ("hire_date", False), ("time_since_epoch", True)]
)
def test_a_day_since_which_somebody_is_there_is_no_time_of_the_row(name, is_of_row, tmp_path):
    rng = np.random.default_rng(0)
    days = pa.array(17_000 + rng.integers(0, 2000, ROWS), pa.int32()).cast(pa.date32())
    table = {"city": rng.integers(0, 50, ROWS), name: days, "click": rng.integers(0, 2, ROWS)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    proposed = propose(str(tmp_path / "x.parquet"), tmp_path / "s.yaml")
    assert (proposed["split"].get("time") == name) is is_of_row
    assert (f"{name}_days" in proposed.get("numeric", {})) is not is_of_row


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clicks_2026-01-{:02}.csv", "from 2026-01-01 to 2026-01-12"),
        ("202601{:02}.csv", "from 2026-01-01 to 2026-01-12"),
        ("dt=2026-01-{:02}/x.csv", ""),  # a column by which rows are split
        ("part-20260{:02}99.csv", ""),
    ],
)
def test_files_that_are_named_by_days_are_told_where_no_column_is_a_time(name, told, tmp_path):
    for day in range(1, 13):
        path = tmp_path / name.format(day)
        path.parent.mkdir(exist_ok=True)
        path.write_text("user,click\n" + "".join(f"{n % 7},{n % 2}\n" for n in range(40)))
    notes = [n for n in propose_schema(str(tmp_path)).notes if "named by days" in n]
    assert len(notes) == bool(told)
    assert told in "".join(notes) and ("dt=2026-01-01/" in "".join(notes)) == bool(told)


@pytest.mark.parametrize("what", MAY_BE_TIMES)
def test_what_may_be_the_time_of_a_row_is_told_where_rows_are_split_at_random(
    what, tmp_path, capsys
):
    name, change, note = MAY_BE_TIMES[what]
    rng = np.random.default_rng(0)
    seconds = int(START.timestamp()) + rng.integers(0, 40 * DAY_S, ROWS)
    table = {"user": rng.integers(0, 50, ROWS), name: change(seconds)}
    pq.write_table(pa.table(table | {"click": rng.integers(0, 2, ROWS)}), tmp_path / "x.parquet")
    proposed = propose(str(tmp_path / "x.parquet"), tmp_path / "s.yaml")
    assert "random" in proposed["split"]
    shown = capsys.readouterr().out
    assert note in shown
    told = ("splits the rows by it", "no known form", "same form")
    assert any(words in shown for words in told) is bool(note)


@pytest.mark.parametrize("name", ["timestamp", "stage"])
def test_a_few_numbers_of_a_wrong_clock_do_not_hide_a_column_that_is_named_like_a_time(
    name, tmp_path
):
    """As in Taobao's log, of whose seconds some are below 0, and others of the year 2037."""
    rng = np.random.default_rng(0)
    seconds = 1_511_539_200 + rng.integers(0, 9 * 86400, ROWS)
    seconds[:6] = [-1, 0, 44, -1_000_000, 2_037_187_688, 5_000_000_000]
    click, user = rng.integers(0, 2, ROWS), rng.integers(0, 50, ROWS)
    path = tmp_path / "clicks.parquet"
    pq.write_table(pa.table({name: seconds, "user_id": user, "click": click}), path)
    split = propose(str(path), tmp_path / "s.yaml")["split"]
    assert split.get("time") == (name if name == "timestamp" else None)
    seconds[::100] = 7  # too many to be mistakes
    pq.write_table(pa.table({name: seconds, "user_id": user, "click": click}), path)
    assert "time" not in propose(str(path), tmp_path / "t.yaml")["split"]


def test_the_time_of_a_customer_is_not_that_of_a_row(tmp_path):
    """As in Santander's customers, month by month, whose first days differ more than the months."""
    rng = np.random.default_rng(0)
    customer, month = np.divmod(np.arange(ROWS), 8)
    day = np.datetime64("1996-01-13", "D") + rng.integers(0, 6900, ROWS)[customer]
    months = np.datetime64("2015-01", "M") + month
    rows = {
        "ncodpers": customer * 17 + 15_889,
        "fecha_dato": months.astype("M8[D]") + np.timedelta64(27, "D"),
        "fecha_alta": day,
        "click": rng.integers(0, 2, ROWS),
    }
    path = tmp_path / "customers.parquet"
    pq.write_table(pa.table(rows), path)
    proposed = propose(str(path), tmp_path / "s.yaml")
    assert proposed["split"]["time"] == "fecha_dato"
    assert proposed["numeric"]["fecha_alta_days"]["until"] == "fecha_dato"
    # orders of several products, each with the day of its launch, which is no time of the row
    product = rng.integers(0, 300, ROWS)
    launch = np.datetime64("2020-01-01", "D") + rng.integers(0, 250, 300)[product]
    rows = {
        "order_id": customer,
        "bought_day": np.datetime64("2022-01-01", "D") + customer,
        "launch_day": launch,
        "product_id": product,
        "click": rows["click"],
    }
    pq.write_table(pa.table(rows), path)
    assert propose(str(path), tmp_path / "t.yaml")["split"]["time"] == "bought_day"
