"""`histories`: users of events as rows, against loops over the events, and what is recommended."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml

from runner.data.interactions.declaration import Interactions
from runner.data.interactions.histories import Events, latest_rows
from runner.errors import UserError
from runner.serving.predict.make_histories import _write
from tests.conftest import Zygote
from tests.serving.scene import train

MAX_LENGTH, POSITIVE = 4, 3
WORDS = (
    "dataset=csv",
    "model=sasrec",
    "model.net.embedding_dim=8",
    "model.net.uniform=9",
    "optimizer=adam",
    "trainer.batch_size=16",
    "trainer.max_steps=4",
    "trainer.num_threads=1",
    "trainer.yardstick=false",
    "report=false",
)


def events(seed: int, num_rows: int = 700) -> pa.Table:
    """Return events with equal times in the order of their rows; some users and times are gone."""
    rng = np.random.default_rng(seed)
    user_R, item_R = rng.integers(0, 40, num_rows), rng.integers(0, 25, num_rows)
    at_R = np.datetime64("2025-01-01T00:00:00") + rng.integers(0, 400, num_rows).astype("m8[m]")
    return pa.table(
        {
            "who": [f"ü{n}" if n else None for n in user_R.tolist()],
            "what": [f"p {n}" for n in item_R.tolist()],
            "when": [str(t) for t in at_R],
            "stars": rng.integers(1, 6, num_rows),
        }
    )


def expected_histories(table: pa.Table, known: set[str]) -> dict[str, list[str]]:
    """Return the newest liked items of each user."""
    found = defaultdict(list)
    for row in sorted(table.to_pylist(), key=lambda row: row["when"]):  # stable
        if row["who"] and row["stars"] >= POSITIVE and row["what"] in known:
            found[row["who"]].append(row["what"])
    return {user: items[-MAX_LENGTH:] for user, items in found.items()}


@pytest.fixture(scope="module")
def run(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    pacsv.write_csv(events(0), folder / "events.csv")
    schema = {
        "path": str(folder / "events.csv"),
        "split": "leave_one_out",
        "interactions": {
            **{"user": "who", "item": "what", "time": "when"},
            **{"rating": "stars", "positive": POSITIVE, "max_length": MAX_LENGTH},
            "below": "negative",
            "session_gap": "40d",
        },
    }
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    settings = (f"dataset.schema={folder / 'schema.yaml'}", "dataset.on_bad_rows=skip")
    runner.run(*WORDS, *settings, f"hydra.run.dir={folder / 'run'}").check()
    return folder / "run"


def make_histories(runner: Zygote, run: Path, table: pa.Table, folder: Path) -> pa.Table:
    pacsv.write_csv(table, folder / "new.csv")
    out = folder / "users.parquet"
    done = runner.run("histories", str(run), str(folder / "new.csv"), "--out", str(out)).check()
    assert "predict" in done.text and f"{pq.read_table(out).num_rows} users" in done.text
    assert sorted(path.name for path in folder.iterdir()) == ["new.csv", "users.parquet"]
    return pq.read_table(out)


def test_users_without_a_row_are_counted(runner, run, tmp_path):
    """One knows unknown items only, two like nothing of late, one is a user with a row."""
    told = [("a", "p 99", 5), ("b", "p 3", 1), ("b", "p 99", 5), ("c", "p 3", 5), ("a", "x", 5)]
    told += [("d", "p 3", 5), ("c", "p 99", 5), ("c", "p 99", 5), ("d", "p 4", 1)]
    columns = zip(
        *((who, what, f"2026-0{n + 1}-01", stars) for n, (who, what, stars) in enumerate(told))
    )
    table = pa.table([pa.array(column) for column in columns], ["who", "what", "when", "stars"])
    pacsv.write_csv(table, tmp_path / "new.csv")
    out = tmp_path / "users.parquet"
    done = runner.run("histories", str(run), str(tmp_path / "new.csv"), "--out", str(out))
    assert pq.read_table(out)["who"].to_pylist() == ["c"]
    last = "since no event of their last session that counts (interactions: stars from 3) is of any"
    assert f"users without a row: 3 of 4, {last} what that the run knows" in done.text


def test_each_user_has_the_newest_events_that_the_run_would_have_seen(runner, run, tmp_path):
    known = {f"p {n}" for n in range(25)}
    more = pa.table({"who": ["new"], "what": ["p 3"], "when": ["2026-01-01"], "stars": [5]})
    other = pa.table({"who": ["new"], "what": ["p 99"], "when": ["2026-02-01"], "stars": [5]})
    table = pa.concat_tables([events(1), more, other])
    left = tmp_path / ".users.parquet.tmp-x"  # by a command that was killed
    left.mkdir()
    (left / ".lock").write_text("{}")
    rows = make_histories(runner, run, table, tmp_path)
    assert not left.exists()
    assert rows.column_names == ["who", "what", "history"]
    assert rows["what"].null_count == rows.num_rows
    found = dict(zip(rows["who"].to_pylist(), rows["history"].to_pylist(), strict=True))
    assert found == expected_histories(table, known)
    assert found["new"] == ["p 3"] and max(map(len, found.values())) == MAX_LENGTH


def test_what_is_recommended_are_the_texts_of_the_events(runner, run, tmp_path):
    users = make_histories(runner, run, events(2), tmp_path)
    words = ("predict", str(run), str(tmp_path / "users.parquet"), "--keep", "who", "--top-k", "5")
    runner.run(*words, "--out", str(tmp_path / "texts")).check()
    found = pq.read_table(tmp_path / "texts").to_pylist()
    histories = dict(zip(users["who"].to_pylist(), users["history"].to_pylist(), strict=True))
    assert [row["who"] for row in found] == users["who"].to_pylist()
    for row in found:
        assert len(set(row["top_items"])) == 5
        assert set(row["top_items"]) <= {f"p {n}" for n in range(25)} - {*histories[row["who"]]}
    done = runner.run(*words[:-1], "26", "--out", str(tmp_path / "all"))
    assert done.code == 2 and "--top-k 26: there are 25 items; ask for as many" in done.text
    trained_on = run.parent / "events.csv"
    moved = trained_on.rename(tmp_path / "moved.csv")
    try:
        done = runner.run(*words, "--out", str(tmp_path / "hashes"))
    finally:
        moved.rename(trained_on)
    assert done.code == 0, done.text
    assert "top_items are the hashes of texts, since the files of the training" in done.text
    hashes = pq.read_table(tmp_path / "hashes")
    assert pa.types.is_integer(hashes.schema.field("top_items").type.value_type)
    assert hashes["top_scores"].equals(pq.read_table(tmp_path / "texts")["top_scores"])


def test_what_cannot_be_made_is_refused_and_leaves_no_file(runner, run, tmp_path):
    table, out = events(3), tmp_path / "users.parquet"

    def refused(given: pa.Table | None, *words: str) -> str:
        if given is not None:
            pacsv.write_csv(given, tmp_path / "new.csv")
        done = runner.run("histories", str(run), str(tmp_path / "new.csv"), *words).check(2)
        assert not list(tmp_path.glob(".users*"))
        return done.text

    place = ("--out", str(out))
    assert "no column 'stars', which the events" in refused(table.drop_columns(["stars"]), *place)
    assert "histories DIR EVENTS... --out" in refused(table)
    unknown = table.set_column(1, "what", pa.array(["never seen"] * table.num_rows))
    assert f"{tmp_path / 'new.csv'}: has no rows\n" in refused(table.slice(0, 0), *place)
    text = refused(unknown, *place)
    assert "events of items that the run does not know, which are left out: " in text
    assert "no event has a what that the run knows" in text and "stars from 3" in text
    text = refused(table, *place, "dataset.on_bad_rows=error")
    assert "column 'who': is missing" in text and "dataset.on_bad_rows=skip leaves such" in text
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in refused(table, *place)
    assert out.read_text() == "mine"


def test_a_file_that_came_meanwhile_stays(tmp_path):
    out = tmp_path / "users.parquet"

    def blocks():
        yield pa.table({"who": ["a"]})
        out.write_text("mine")

    with pytest.raises(UserError, match=r"--out .*users.parquet: exists by now; nothing was writ"):
        _write(blocks(), tmp_path, out)
    assert out.read_text() == "mine"


def test_a_run_on_rows_has_no_histories(runner, tmp_path):
    run, out = train(runner, tmp_path), tmp_path / "users.parquet"
    done = runner.run("histories", str(run), str(tmp_path / "test.parquet"), "--out", str(out))
    assert done.code == 2 and "its rows were not made of events" in done.text
    assert not out.exists()


def test_a_session_and_events_that_were_not_liked():
    users_E = np.array([1, 1, 1, 1, 2, 2, 3])
    times_E = np.array([0.0, 10, 500, 510, 0, 1, 7])
    liked_E = np.array([1, 1, 1, 0, 0, 0, 1], bool)
    events = Events(users_E, times_E, np.zeros(7, np.int8), liked_E, np.ones(7, bool))
    columns = {"user": "u", "item": "i", "time": "t"}
    rows = latest_rows(events, 0, Interactions(**columns))
    assert rows.row_R.tolist() == [3, 6]  # user 2 has liked nothing
    places_V, offsets = rows.flat_history()
    assert places_V.tolist() == [0, 1, 2, 6] and offsets.tolist() == [0, 3, 4]
    rows = latest_rows(events, 0, Interactions(**columns, session_gap_s=100.0))
    assert rows.flat_history()[0].tolist() == [2, 6]
    rows = latest_rows(events, 0, Interactions(**columns, max_length=2))
    assert rows.flat_history()[0].tolist() == [1, 2, 6]
