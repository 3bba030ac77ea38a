"""A time after that of a row tells how the label is made, or how late it is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from runner.data.proposal.schema import propose_schema

ROWS, DAY = 3_000, 86_400
START = 1_767_225_600  # 2026-01-01


def shown(rng, share=0.1, mean_delay_s=30.0):
    """Return rows that were shown on 21 days, and when those that were clicked were clicked."""
    shown_s = START + np.sort(rng.uniform(0, 21 * DAY, ROWS)).round()
    click_s = shown_s + rng.exponential(mean_delay_s, ROWS).round()
    is_known = (rng.random(ROWS) < share) & (click_s < START + 21 * DAY)
    rows = {
        "user_id": rng.integers(0, 200, ROWS),
        "item_id": rng.integers(0, 90, ROWS),
        "shown_at": pd.to_datetime(shown_s, unit="s"),
        "click_ts": pd.Series(pd.to_datetime(click_s, unit="s")).where(is_known),
    }
    return pd.DataFrame(rows)


def notes_on(name, rows, folder):
    rows.to_parquet(folder / "rows.parquet")
    notes = propose_schema(str(folder / "rows.parquet")).notes
    return [note for note in notes if note.split(":")[0] == name]


@pytest.mark.parametrize("without", [[], ["item_id"]])
def test_a_time_that_few_rows_have_is_told_how_it_becomes_the_label(without, tmp_path):
    rows = shown(np.random.default_rng(0)).drop(columns=without)
    [note] = notes_on("click_ts", rows, tmp_path)
    missing = f"{rows['click_ts'].isna().mean():.1%}"
    assert f"is missing in {missing} of the rows and otherwise not before shown_at" in note
    code = "t['click'] = t['click_ts'].notna().astype(int); t.to_parquet('rows.parquet')"
    assert code in note and "schema rows.parquet --label click`" in note
    names = {"pandas": pd, "t": rows}
    exec(code.split(";")[0], names)
    assert names["t"]["click"].sum() == rows["click_ts"].notna().sum()


@pytest.mark.parametrize("why", ["before the row", "complete", "of the user", "of the item"])
def test_other_times_make_no_label(why, tmp_path):
    rows = shown(np.random.default_rng(0))
    if why == "before the row":
        rows["click_ts"] = rows["shown_at"] - (rows["click_ts"] - rows["shown_at"])
    elif why == "complete":
        rows["click_ts"] = rows["click_ts"].fillna(rows["shown_at"])
    else:
        owner = rows["user_id" if why == "of the user" else "item_id"]
        rows["click_ts"] = pd.Timestamp("2026-03-01") + pd.to_timedelta(owner, unit="D")
        rows["click_ts"] = rows["click_ts"].where(owner % 3 == 0)
    assert notes_on("click_ts", rows, tmp_path) == []


def test_a_label_that_is_known_late_is_told_with_the_rows_that_lack_it(tmp_path):
    rows = shown(np.random.default_rng(0), 0.3, 2 * DAY)
    rows["click"] = rows["click_ts"].notna().astype(int)
    [note] = notes_on("click", rows, tmp_path)
    known = rows.dropna()
    late_s = (known["click_ts"] - known["shown_at"]).quantile(0.95).total_seconds()
    is_new = rows["shown_at"] > rows["shown_at"].max() - pd.Timedelta(late_s, unit="s")
    new, old = rows["click"][is_new].mean(), rows["click"][~is_new].mean()
    assert new < 0.8 * old
    assert f"1 in {new:.1%} of the rows of the last {late_s / DAY:.2g} days" in note
    assert f"and in {old:.1%} of those before" in note
    assert f"leave out the rows from {rows['shown_at'][is_new].min()} on" in note


@pytest.mark.parametrize("why", ["soon known", "of another label"])
def test_a_label_of_which_all_is_known_is_told_nothing(why, tmp_path):
    rows = shown(np.random.default_rng(0), 0.3, 30.0 if why == "soon known" else 2 * DAY)
    rows["click"] = rows["click_ts"].notna().astype(int)
    if why == "of another label":
        rows["click"] = np.random.default_rng(1).integers(0, 2, ROWS)
    assert notes_on("click", rows, tmp_path) == []
