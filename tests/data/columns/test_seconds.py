"""Durations and times of day in columns are numbers of seconds, against those of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.errors import DataError
from tests.data.clicks import open_dataset

ROWS = 200
UNITS = ("s", "ms", "us", "ns")


@pytest.fixture
def table(tmp_path, monkeypatch) -> pa.Table:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    label = pa.array(rng.integers(0, 2, ROWS))
    seconds = rng.integers(0, 86_400, (len(UNITS), ROWS))
    columns = {}
    for unit, values in zip(UNITS, seconds):
        scale = 1000 ** UNITS.index(unit)
        of_day = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        plain = pa.int32() if unit in ("s", "ms") else pa.int64()
        columns[f"at_{unit}"] = pa.array(values * scale, plain).cast(of_day)
        columns[f"took_{unit}"] = pa.array(-values * scale, mask=values < 9_000).cast(
            pa.duration(unit)
        )
    return pa.table({"label": label, **columns})


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
@pytest.mark.parametrize("standardise", [False, True])
def test_durations_and_times_of_day_are_seconds(tmp_path, table, format_, standardise):
    path = tmp_path / f"x.{format_}"
    if format_ == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    names = table.column_names[1:]
    numeric = {name: {"default": 5.0, "standardise": standardise} for name in names}
    ids = {"hour": {"column": "at_us", "encode": "hour"}}
    schema = {"labels": ["label"], "numeric": numeric, "categorical": ids}
    data = open_dataset(path=str(path), format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    frame = table.to_pandas()
    expected = np.stack(
        [pd.to_timedelta(frame[name].astype(str)).dt.total_seconds().fillna(5.0) for name in names],
        axis=1,
    )
    if standardise:
        expected = (expected - expected.mean(0)) / expected.std(0)
    np.testing.assert_allclose(batch.dense_BD.numpy(), expected, rtol=1e-5, atol=1e-6)
    hours = [value.hour for value in frame["at_us"]]
    found = batch.sparse["hour"].values().numpy()
    assert len({*zip(found.tolist(), hours)}) == len(set(hours)) > 20


def test_they_are_proposed_as_numbers_and_lists_of_objects_are_told(tmp_path, table):
    objects = pa.array([[{"id": n, "w": 0.5}] for n in range(ROWS)])
    pq.write_table(table.append_column("objects", objects), tmp_path / "x.parquet")
    proposal = propose_schema(str(tmp_path / "x.parquet"), hints=Hints(labels=("label",)))
    roles = {column.name: role for column, role in proposal.columns}
    assert {roles[n].reason for n in roles if n.startswith("at")} == {"a time of day, in seconds"}
    assert {roles[n].reason for n in roles if n.startswith("took")} == {"a duration, in seconds"}
    assert not any("--categorical" in note for note in proposal.notes)
    told = "a list of objects: make a list of each of their fields (id, w)"
    assert (roles["objects"].name, roles["objects"].reason) == ("", told)
    plain = {"labels": ["label"], "numeric": {"at_us": {}}}  # else read without a rewrite
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=plain, mix=False)
    first = next(data.batches("train", batch_size=1)).dense_BD.item()
    at = table["at_us"][0].as_py()
    assert first == at.hour * 3600 + at.minute * 60 + at.second
    wrong = {"labels": ["label"], "categorical": {"took_s": {"num_rows": 9}}}
    with pytest.raises(DataError, match=r"'took_s' has type duration\[s\], expected an integer"):
        open_dataset(path=str(tmp_path / "x.parquet"), schema=wrong)


@pytest.mark.parametrize("rewrite", ["auto", "always"])
@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()])
def test_times_of_one_day_are_standardised_without_the_steps_of_float32(
    tmp_path, monkeypatch, type_, log1p, rewrite
):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    seconds = 1_764_000_000 + np.random.default_rng(2).permutation(86_400)[:3000]
    table = {"label": [n % 2 for n in range(3000)], "at": pa.array(seconds).cast(type_)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", row_group_size=1000)
    schema = {"labels": ["label"], "numeric": {"at": {"standardise": True, "log1p": log1p}}}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema, mix=False, rewrite=rewrite)
    found = next(data.batches("train", batch_size=3000)).dense_BD[:, 0].numpy()
    expected = np.log1p(seconds) if log1p else seconds.astype(float)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(found, expected, atol=2e-6)
