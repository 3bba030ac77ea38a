"""Days of times, since 1970 and until the time of the row, against those of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.errors import ConfigError, DataError
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.rows.encode import Transforms
from tests.data.clicks import open_dataset

ROWS = 600
DAY = pd.Timedelta(days=1)


@pytest.fixture
def frame(tmp_path, monkeypatch) -> pd.DataFrame:
    """Rows in the order of their time `ts`, with other times before and after it."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(2)
    ts = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 9e6, ROWS)), unit="s")
    age, member = rng.uniform(18, 90, ROWS) * 365.25, rng.exponential(100, ROWS)
    frame = pd.DataFrame({"user_id": rng.integers(0, 9, ROWS), "ts": ts})
    frame["born"] = (ts - age * DAY).normalize()
    frame["joined_at"] = (ts - member * DAY).floor("s")
    frame["delivered_at"] = ts + DAY
    frame["click"] = (rng.random(ROWS) < 1 / (1 + np.exp(age / 365.25 / 10 - 5))).astype(int)
    return frame


def write(folder, frame: pd.DataFrame, format_: str, form: str = "") -> str:
    path = folder / f"x.{format_}"
    shown = frame.copy()
    if form == "dmy":
        shown["born"] = frame["born"].dt.strftime("%d.%m.%Y")
    if form == "milliseconds":
        shown["born"] = frame["born"].astype("M8[ms]").astype("int64")
    if format_ == "csv":
        shown.to_csv(path, index=False)
    else:
        pq.write_table(pa.Table.from_pandas(shown, preserve_index=False), path)
    return str(path)


@pytest.mark.parametrize("format_", ["parquet", "csv"])
@pytest.mark.parametrize("form", ["", "dmy", "milliseconds"])
def test_days_are_those_of_pandas_and_a_request_has_the_same(tmp_path, frame, format_, form):
    path = write(tmp_path, frame, format_, form)
    of_birth = {"column": "born", "encode": "days", **({"input": form} if form else {})}
    schema = {
        "labels": ["click"],
        "numeric": {"born": of_birth, "age": {**of_birth, "until": "ts", "standardise": True}},
        "categorical": {"ts_hour": {"column": "ts", "encode": "hour"}},
    }
    data = open_dataset(path=path, format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    since_1970 = (frame["born"] - pd.Timestamp(0)) / DAY
    assert since_1970.min() < 0
    age = (frame["ts"] - frame["born"]) / DAY
    expected = np.stack([since_1970, (age - age.mean()) / age.std(ddof=0)], axis=1)
    np.testing.assert_allclose(batch.dense_BD.numpy(), expected, rtol=1e-5, atol=1e-5)
    moments = {"age": [float(age.mean()), float(age.std(ddof=0))]}
    raw = Transforms(parse_schema(schema), FittedTransforms(moments=moments))
    rows = pa_csv.read_csv(path) if format_ == "csv" else pq.read_table(path)
    found = encode_rows(raw, rows, ["born", "age"]).dense
    np.testing.assert_allclose(found["born"], batch.dense_BD[:, 0].numpy(), rtol=1e-6)
    np.testing.assert_allclose(found["age"], batch.dense_BD[:, 1].numpy(), rtol=1e-5, atol=1e-5)


def test_a_missing_time_takes_the_default_and_a_text_that_is_none_is_told(tmp_path, frame):
    frame = frame.astype({"born": str})
    frame.loc[3, "born"] = None
    frame.loc[4, "ts"] = pd.NaT
    path = write(tmp_path, frame, "csv")
    numbers = {"age": {"column": "born", "encode": "days", "until": "ts", "default": -1.0}}
    schema = {"labels": ["click"], "numeric": numbers}
    data = open_dataset(path=path, format="csv", schema=schema, mix=False)
    found = next(data.batches("train", batch_size=ROWS)).dense_BD[:, 0]
    assert (found == -1).nonzero().flatten().tolist() == [3, 4]
    frame.loc[5, "born"] = "unknown"
    path = write(tmp_path, frame, "csv")
    with pytest.raises(DataError, match=r"line 7, column 'born': value 'unknown': no time"):
        next(open_dataset(path=path, format="csv", schema=schema).batches("train", batch_size=9))
    del numbers["age"]["default"]
    frame.loc[5, "born"] = None
    path = write(tmp_path, frame, "csv")
    told = r"line 5, column 'born': is missing, or 'ts' is, and has no default"
    with pytest.raises(DataError, match=told):
        next(open_dataset(path=path, format="csv", schema=schema).batches("train", batch_size=9))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"encode": "day"}, "encode='day': expected one of days, count, share; nearest: 'days'"),
        ({"encode": "days", "size": 3}, "encode=days: is made of one time a row"),
        ({"encode": "days", "input": "amount"}, "encode=days: is made of one time a row"),
        ({"input": "dmy"}, "input=dmy: is for the days of a time: encode: days"),
        ({"until": "ts"}, "until=ts: is for the days of a time: encode: days"),
        ({"encode": "days", "until_input": "dmy"}, "is for the column that `until` names"),
        ({"encode": "days", "until": "t", "until_input": "dym"}, "until_input='dym': expected one"),
    ],
)
def test_settings_that_do_not_go_together_are_told(settings, told):
    with pytest.raises(ConfigError, match=told):
        parse_schema({"labels": ["y"], "numeric": {"x": settings}})


def propose(folder, path: str, *flags: str) -> dict:
    out = folder / "s.yaml"
    out.unlink(missing_ok=True)
    assert schema_verb([path, "--out", str(out), *flags], ()) == 0
    return yaml.safe_load(out.read_text())


def test_the_date_of_the_row_itself_is_no_number_of_days(tmp_path, frame, capsys):
    frame["date"] = frame["ts"].dt.normalize()  # as folders have it
    frame["week"] = frame["date"] - pd.to_timedelta(frame["ts"].dt.weekday, unit="D")
    path = write(tmp_path, frame.drop(columns="delivered_at"), "parquet")
    assert set(propose(tmp_path, path)["numeric"]) == {"born_days", "joined_at_days", "week_days"}
    assert "date_days" in propose(tmp_path, path, "--numeric", "date")["numeric"]


def test_times_before_that_of_the_row_are_proposed_as_days_until_it(tmp_path, frame, capsys):
    frame["refunded_at"] = frame["ts"].where(frame["click"] == 1) - DAY  # it tells the label
    found = propose(tmp_path, write(tmp_path, frame, "csv", "dmy"))
    assert found["split"]["time"] == "ts"
    days = {"encode": "days", "until": "ts", "standardise": True}
    assert found["numeric"] == {
        "born_days": {"column": "born", "input": "dmy", **days},
        "joined_at_days": {"column": "joined_at", **days},
    }
    assert "born, joined_at: the days until ts are proposed as numbers" in capsys.readouterr().out
    text = (tmp_path / "s.yaml").read_text()
    assert "#   born: a time; used for born_days" in text
    assert "#   delivered_at: a time\n" in text
    path = str(tmp_path / "x.csv")
    found = propose(tmp_path, path, "--numeric", "delivered_at,refunded_at")
    days |= {"standardise": True}
    assert found["numeric"]["delivered_at_days"] == {"column": "delivered_at", **days}
    assert found["numeric"]["refunded_at_days"].items() >= {"column": "refunded_at", **days}.items()


def test_whole_numbers_that_are_days_are_times_whatever_they_are_called(tmp_path, frame):
    frame["begun"] = frame.pop("born").dt.strftime("%Y%m%d").astype(int)
    frame["parcel"] = 20_000_000 + np.random.default_rng(0).integers(0, 400_000, ROWS)
    path = write(tmp_path, frame.drop(columns=["joined_at", "delivered_at"]), "csv")
    numeric = propose(tmp_path, path)["numeric"]
    days = {"encode": "days", "input": "yyyymmdd", "until": "ts", "standardise": True}
    assert numeric["begun_days"] == {"column": "begun", **days}
    assert "begun" not in numeric and "parcel_days" not in numeric
    path = write(tmp_path, frame.assign(begun=frame["begun"] % 20 + 20_200_101), "csv")
    assert "begun_days" not in propose(tmp_path, path).get("numeric", {})  # a few may be codes


def test_without_a_time_of_the_row_days_are_counted_since_1970(tmp_path, frame):
    frame = frame[["user_id", "born", "click"]].sample(frac=1, random_state=0)
    frame.loc[frame.index[:20], "born"] = None
    path = write(tmp_path, frame, "csv")
    found = propose(tmp_path, path)
    assert "random" in found["split"]
    born = found["numeric"]["born_days"]
    middle = ((frame["born"] - pd.Timestamp(0)) / DAY).median()
    assert born.pop("default") == pytest.approx(middle, rel=1e-5)
    assert born == {"column": "born", "encode": "days", "standardise": True}
    schema = str(tmp_path / "s.yaml")
    data = open_dataset(path=None, format="csv", schema=schema)
    assert data.schema.dense == ("born_days",)
    dense = next(data.batches("train", batch_size=ROWS)).dense_BD
    assert abs(dense.mean().item()) < 1e-4


def test_the_last_days_that_arrow_has_are_days(tmp_path, monkeypatch):
    """DuckDB writes the date `infinity` as the last one, beyond the times in microseconds."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    days = pa.array([0, 1, 2**31 - 1, None], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"click": [0, 1, 0, 1], "until": days}), tmp_path / "x.parquet")
    until = {"encode": "days", "default": -1}
    data = open_dataset(
        path=str(tmp_path / "x.parquet"),
        schema={"labels": {"click": {}}, "numeric": {"until": until}},
        mix=False,
    )
    [batch] = data.batches("train", batch_size=4)
    assert batch.dense_BD[:, 0].tolist() == [0, 1, 2.0**31, -1]
