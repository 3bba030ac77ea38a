"""`schema` tells where old rows mislead, of tables that are split by time."""

import re

import numpy as np
import pandas as pd
import pytest

from runner.data.proposal.schema import propose_schema

ROWS = 6_000


def notes_of(folder, turns: float, *, kind: str = "both", with_time: bool = True) -> list[str]:
    rng = np.random.default_rng(0)
    at_R = np.sort(rng.random(ROWS))
    item_R, x_R = rng.integers(0, 20, ROWS), rng.normal(size=ROWS)
    effects_R = np.cos(turns * np.pi * at_R) * rng.normal(size=20)[item_R] * (kind != "numbers")
    logits_R = effects_R + np.cos(turns * np.pi * at_R) * x_R * (kind != "ids")
    frame = pd.DataFrame(
        {"item": [f"i{item}" for item in item_R], "score": x_R}
        | {"click": (rng.random(ROWS) < 1 / (1 + np.exp(-logits_R))).astype(int)}
    )
    if with_time:
        frame["ts"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(at_R * 100, "D")
    frame.to_parquet(folder / "rows.parquet")
    notes = propose_schema(str(folder / "rows.parquet")).notes
    return [note for note in notes if "old rows mislead" in note]


@pytest.mark.parametrize("kind", ["ids", "numbers", "both"])
def test_effects_that_change_with_the_time_are_told_with_the_day_of_the_newer_rows(tmp_path, kind):
    (note,) = notes_of(tmp_path, 1.0, kind=kind)
    newer, of_all = map(float, re.findall(r"0\.\d{3}", note))
    assert note.startswith("ts: ") and newer > of_all + 0.01
    assert "on rows from 2024-02-1" in note  # 40 days of 100, those before the last 20


def test_effects_that_stay_and_rows_without_a_time_are_left_in_peace(tmp_path):
    assert notes_of(tmp_path, 0.0) == []
    assert notes_of(tmp_path, 1.0, with_time=False) == []
