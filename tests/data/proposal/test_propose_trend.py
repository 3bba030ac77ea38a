"""The time of a row is a number where the level of a label to be predicted moves with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb

DAYS, SHOPS = 200, 10
LEVELS = {
    "a price that rises": np.linspace(0, 20, DAYS),
    "an end of growth": 20 * (1 - np.exp(-np.arange(DAYS) / 40)),
    "none": np.zeros(DAYS),
    "a week": 5 * np.sin(2 * np.pi * np.arange(DAYS) / 7),
    "days of their own": np.random.default_rng(1).normal(0, 5, DAYS),
}


def propose(folder: Path, level_D: np.ndarray, label: str = "revenue", form: str = "") -> dict:
    """Propose a schema of the shops' labels by day, whose level is given; return its YAML."""
    rng = np.random.default_rng(0)
    day = np.repeat(np.arange(DAYS), SHOPS)
    shop = np.tile(np.arange(SHOPS), DAYS)
    y = 50 + level_D[day] + rng.normal(0, 5, SHOPS)[shop] + rng.normal(0, 4, len(day))
    dates = np.datetime64("2020-01-01") + day
    texts = pa.array([f"{d:%d/%m/%Y}" for d in dates.tolist()]) if form else pa.array(dates)
    x = rng.normal(size=len(day))
    table = pa.table({"date": texts, "shop_id": shop, "temperature": x, "revenue": y})
    if label == "click":
        table = table.set_column(3, "click", pa.array((y > np.median(y)).astype(int)))
    pq.write_table(table, folder / "rows.parquet")
    out = folder / "s.yaml"
    assert schema_verb([str(folder / "rows.parquet"), "--label", label, "--out", str(out)], ()) == 0
    return yaml.safe_load(out.read_text())


@pytest.mark.parametrize("form", ["", "dmy"])
def test_a_level_that_rises_in_a_line_is_followed_beyond_the_train_rows(tmp_path, capsys, form):
    proposed = propose(tmp_path, LEVELS["a price that rises"], form=form)
    expected = {"column": "date", "encode": "days", "standardise": True}
    assert proposed["numeric"]["date_days"] == expected | ({"input": form} if form else {})
    assert "the level of revenue changes with the time" in capsys.readouterr().out


def test_a_level_that_stays_where_it_was_ends_with_the_train_rows(tmp_path):
    given = propose(tmp_path, LEVELS["an end of growth"])["numeric"]["date_days"]
    last = (np.datetime64("2020-01-01") - np.datetime64("1970-01-01")).astype(int) + 0.8 * DAYS
    assert given["clip"] == [None, pytest.approx(last, abs=1)]


def test_the_train_rows_of_a_few_minutes_end_at_their_own_second(tmp_path):
    rng = np.random.default_rng(0)
    start, num_rows = np.datetime64("2021-01-01T12:00:00.000"), 2000
    level = 20 * (1 - np.exp(-np.arange(num_rows) / 400))
    table = {
        "ts": start + np.arange(num_rows) * np.timedelta64(300, "ms"),
        "x": rng.normal(size=num_rows),
        "load": 50 + level + rng.normal(0, 2, num_rows),
    }
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    given = [str(tmp_path / "x.parquet"), "--label", "load", "--out", str(tmp_path / "x.yaml")]
    assert schema_verb(given, ()) == 0
    number = yaml.safe_load((tmp_path / "x.yaml").read_text())["numeric"]["ts_days"]
    last_days = (table["ts"][1600] - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    assert number["clip"] == [None, pytest.approx(last_days, abs=1e-5)]


@pytest.mark.parametrize("level", ["none", "a week", "days of their own"])
def test_a_level_that_stays_or_returns_needs_no_time(tmp_path, level):
    assert "date_days" not in propose(tmp_path, LEVELS[level])["numeric"]


def test_a_label_of_two_values_needs_no_time(tmp_path):
    """What orders rows of one period is the same at every level."""
    assert "date_days" not in propose(tmp_path, LEVELS["a price that rises"], "click")["numeric"]
