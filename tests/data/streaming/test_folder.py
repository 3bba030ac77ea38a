"""dataset=folder gives out the rows of files as they arrive, in order, from any position on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from runner.batch import DataPosition
from runner.data.core.dataset import EndOfStream
from runner.data.core.file_hashes import hash_file
from runner.data.prepare.fingerprint import fingerprint
from runner.data.streaming.folder import folder
from runner.errors import ConfigError, DataError
from tests.data.streaming.files import SCHEMA, arrive, rows


def stream(path: Path, **settings):
    given = {"poll_s": 0.02, "idle_timeout_s": 0.2, "incomplete_timeout_s": 0.2}
    return folder(**({"path": str(path), "schema": SCHEMA} | given | settings))


def read(dataset, batch_size: int, start: DataPosition = DataPosition()):  # noqa: B008
    """Return all batches up to the end of the stream, and why it ended."""
    batches = []
    try:
        for batch in dataset.batches("train", batch_size=batch_size, start=start):
            batches.append(batch)
    except EndOfStream as end:
        return batches, str(end)
    raise AssertionError("a stream ends with EndOfStream")


def ids(batches) -> list[int]:
    return [int(i) for batch in batches for i in batch.sparse["item"].values()]


def test_batches_run_across_files_and_row_groups_in_the_order_of_names(tmp_path):
    whole = rows(700)
    for name, start, stop in (("b", 250, 600), ("a", 0, 250), ("c", 600, 700)):
        arrive(tmp_path, f"{name}.parquet", whole.slice(start, stop - start))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".d.parquet").touch()
    batches, end = read(stream(tmp_path), 64)
    assert ids(batches) == list(range(640)), "rows that fill no batch are left for later"
    assert [b.size for b in batches] == 10 * [64]
    assert [int(r) for b in batches for r in b.rows_B] == list(range(640))
    assert "no new file" in end
    place = {"file": "b.parquet", "row": 6, "rows": 350, "files": 2}
    place["xxh3"] = hash_file(tmp_path / "b.parquet")
    assert batches[3].cursor == DataPosition(0, 256, place)
    labels = [int(y) for b in batches for y in b.labels_BT[:, 0]]
    assert labels == whole["click"].to_pylist()[:640]


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [1, 7, 50, 64, 100])
def test_from_any_position_on_it_gives_the_rest(tmp_path, batch_size):
    whole = rows(300)
    for n in range(3):
        arrive(tmp_path, f"{n}.parquet", whole.slice(100 * n, 100), group_rows=30)
    batches, _ = read(stream(tmp_path), batch_size)
    for number in range(0, len(batches), max(1, len(batches) // 9)):
        rest, _ = read(stream(tmp_path), batch_size, batches[number].cursor)
        assert ids(rest) == ids(batches[number + 1 :])
        assert [b.cursor for b in rest] == [b.cursor for b in batches[number + 1 :]]
        seen = [int(r) for b in rest for r in b.rows_B]
        assert seen == [int(r) for b in batches[number + 1 :] for r in b.rows_B]


@pytest.mark.long
def test_files_that_come_while_it_waits_are_read_and_an_empty_one_is_passed(tmp_path):
    whole = rows(120)

    def later() -> None:
        for n in range(4):
            time.sleep(0.1)
            table = whole.slice(0, 0) if n == 1 else whole.slice(40 * (n - (n > 1)), 40)
            arrive(tmp_path, f"{n}.parquet", table)

    thread = threading.Thread(target=later)
    thread.start()
    batches, _ = read(stream(tmp_path, idle_timeout_s=1.0), 30)
    thread.join()
    assert ids(batches) == list(range(120))


def test_an_incomplete_file_is_waited_for_and_read_when_it_is_complete(tmp_path):
    data = arrive(tmp_path, "a.parquet", rows(90)).read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:-100])

    def whole() -> None:
        time.sleep(0.3)
        (tmp_path / "a.parquet").write_bytes(data)

    thread = threading.Thread(target=whole)
    thread.start()
    batches, _ = read(stream(tmp_path, incomplete_timeout_s=5.0), 30)
    thread.join()
    assert ids(batches) == list(range(90))


@pytest.mark.parametrize("size", [0, 3, 200])
def test_a_file_that_stays_incomplete_is_an_error(tmp_path, size):
    arrive(tmp_path, "a.parquet", rows(40))
    data = arrive(tmp_path, "b.parquet", rows(90)).read_bytes()
    (tmp_path / "b.parquet").write_bytes(data[:size])
    batches = stream(tmp_path).batches("train", batch_size=40)
    next(batches)
    with pytest.raises(DataError, match=r"b\.parquet: not a readable.*waited 0.2 s"):
        next(batches)


def test_a_file_with_a_name_before_one_already_read_is_an_error(tmp_path):
    arrive(tmp_path, "2.parquet", rows(40))
    batches = stream(tmp_path).batches("train", batch_size=40)
    next(batches)
    arrive(tmp_path, "1.parquet", rows(40))
    with pytest.raises(DataError, match=r"1\.parquet: came after 2\.parquet"):
        next(batches)


@pytest.mark.parametrize("size", [40, 30])
def test_a_file_that_came_late_while_the_run_was_stopped_is_an_error(tmp_path, size):
    """Whether the run stopped at the end of a file or within it; a name behind it is no mistake."""
    for name in "135":
        arrive(tmp_path, f"{name}.parquet", rows(40))
    cursor = read(stream(tmp_path), size)[0][1].cursor
    arrive(tmp_path, "4.parquet", rows(40))
    assert cursor.place["file"] == "3.parquet"
    assert len(ids(read(stream(tmp_path), 10, cursor)[0])) == 160 - 2 * size
    arrive(tmp_path, "2.parquet", rows(40))
    told = r"has 3 files up to 3\.parquet, of which the run had read 2; the newest is 2\.parquet"
    with pytest.raises(DataError, match=told):
        read(stream(tmp_path), 10, cursor)


def test_a_file_that_has_changed_is_refused_on_resume(tmp_path):
    arrive(tmp_path, "a.parquet", rows(100))
    arrive(tmp_path, "b.parquet", rows(40))
    batches, _ = read(stream(tmp_path), 60)
    within, after = (
        batches[0].cursor,
        DataPosition(0, 100, {"file": "a.parquet", "row": 100, "rows": 100}),
    )
    arrive(tmp_path, "a.parquet", rows(90))
    with pytest.raises(DataError, match="has 90 rows, and had 100"):
        read(stream(tmp_path), 60, within)
    arrive(tmp_path, "a.parquet", rows(100, seed=1))
    with pytest.raises(DataError, match="other content than when the run used 60 of its 100 rows"):
        read(stream(tmp_path), 60, within)
    without_hash = {k: v for k, v in within.place.items() if k != "xxh3"}  # as older runs saved it
    rest, _ = read(stream(tmp_path), 40, DataPosition(0, 60, without_hash))
    assert ids(rest) == [*range(60, 100), *range(40)]
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(DataError, match="is gone, and the run had used 60 of its 100 rows"):
        read(stream(tmp_path), 60, within)
    rest, _ = read(stream(tmp_path), 20, after)  # its rows are all used, so it may be deleted
    assert ids(rest) == list(range(40))


def test_a_bad_value_names_its_file(tmp_path):
    table = rows(40).set_column(3, "item", [[*range(39), 1000]])
    arrive(tmp_path, "a.parquet", table)
    with pytest.raises(DataError, match=r"a\.parquet: row group 0, row 39, column 'item': value 1"):
        read(stream(tmp_path), 10)


def test_a_signal_ends_the_wait(tmp_path):
    dataset = stream(tmp_path, idle_timeout_s=None)
    threading.Timer(0.2, lambda: setattr(dataset, "should_stop", lambda: True)).start()
    batches, end = read(dataset, 10)
    assert (batches, end) == ([], "stopped")


def test_its_fingerprint_depends_on_folder_and_columns_but_not_on_what_has_arrived(tmp_path):
    node = {
        "_target_": "runner.data.streaming.folder.folder",
        "path": str(tmp_path),
        "schema": SCHEMA,
        "poll_s": 1,
        "idle_timeout_s": None,
        "incomplete_timeout_s": 60,
    }
    before = fingerprint(node)
    arrive(tmp_path, "a.parquet", rows(10))
    assert fingerprint({**node, "poll_s": 2, "idle_timeout_s": 5}) == before
    other = {**SCHEMA, "numeric": {"age": {}}}
    assert fingerprint({**node, "schema": other}) != before


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"path": None}, DataError, "dataset.path is not set"),
        (
            {"path": None, "schema": {**SCHEMA, "path": "arriving"}},
            DataError,
            "the schema names one: dataset.path=arriving",
        ),
        ({"path": "nowhere"}, DataError, "dataset.path=nowhere: no such folder"),
        ({"poll_s": 0}, ConfigError, "dataset.poll_s=0: must be above 0"),
        ({"idle_timeout_s": -1}, ConfigError, "null: for ever"),
        (
            {"schema": {**SCHEMA, "categorical": {"city": {"encode": "vocabulary"}}}},
            ConfigError,
            "has no file yet",
        ),
        ({"schema": None}, ConfigError, "dataset.schema is not set"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, settings, error, message):
    given = {"path": str(tmp_path), "schema": SCHEMA, "poll_s": 1.0}
    given |= {"idle_timeout_s": None, "incomplete_timeout_s": 1.0}
    with pytest.raises(error, match=message):
        folder(**(given | settings))


@pytest.mark.parametrize("encode", ["hash", "growing"])
@pytest.mark.parametrize(
    ("first", "age"),
    [  # integers without any transform are read as they are, and texts after them refused
        (pa.int64(), {"standardise": True}),
        (pa.string(), {"standardise": True}),
        (pa.string(), {}),
    ],
)
def test_ids_keep_the_type_of_the_first_file(tmp_path, first, age, encode):
    whole = rows(80)
    texts = whole.set_column(4, "user", whole["user"].cast(pa.string()))
    parts = [whole, texts] if first == pa.int64() else [texts, whole]
    arrive(tmp_path, "a.parquet", parts[0].slice(0, 40))
    user = {"encode": encode, "num_rows": 1000}
    columns = {"categorical": SCHEMA["categorical"] | {"user": user}}
    columns["numeric"] = SCHEMA["numeric"] | {"age": age}
    dataset = stream(tmp_path, schema=SCHEMA | columns)
    arrive(tmp_path, "b.parquet", parts[1].slice(0, 40))  # the same ids again
    batches, _ = read(dataset, 40)
    assert torch.equal(*(batch.sparse["user"].values() for batch in batches))


@pytest.mark.parametrize("encode", ["hash", "growing"])
def test_a_run_that_began_in_an_empty_folder_keeps_the_type_of_its_first_file(tmp_path, encode):
    files, cross = tmp_path / "files", {"cross": ["item", "user"], "num_rows": 100}
    user = {"encode": encode, "num_rows": 1000}
    schema = SCHEMA | {"categorical": SCHEMA["categorical"] | {"user": user, "both": cross}}
    files.mkdir()
    dataset = stream(files, schema=schema)
    dataset.save_fitted_transforms(tmp_path / "data")
    whole = rows(40)
    path = arrive(files, "a.parquet", whole)
    [first], _ = read(dataset, 40)
    path.unlink()
    texts = whole.set_column(4, "user", whole["user"].cast(pa.string()))
    arrive(files, "b.parquet", texts)
    resumed = stream(files, schema=schema, learnt=str(tmp_path / "data"))
    [second], _ = read(resumed, 40, first.cursor)
    for name in ("user", "both"):
        assert torch.equal(*(b.sparse[name].values() for b in (first, second)))
