import json
import math
import os

import pytest

from runner.errors import UserError
from runner.rundir.json_files import JsonlFile, read_json, read_jsonl, write_json
from tests.conftest import python


def test_nan_and_infinity_are_strings_that_float_reads_back(tmp_path):
    log = JsonlFile(tmp_path / "m.jsonl")
    log.append({"a": math.nan, "b": math.inf, "c": [-math.inf, 1.5], "d": {"e": math.nan}})
    strict = json.loads((tmp_path / "m.jsonl").read_text(), parse_constant=pytest.fail)
    assert math.isnan(float(strict["a"]))
    assert float(strict["b"]) == math.inf
    assert float(strict["c"][0]) == -math.inf
    assert strict["c"][1] == 1.5


def test_a_number_survives_to_the_last_digit(tmp_path):
    value = 0.1 + 0.2
    JsonlFile(tmp_path / "m.jsonl").append({"v": value})
    assert read_jsonl(tmp_path / "m.jsonl")[0]["v"] == value


def test_truncate_takes_the_log_back_to_the_byte(tmp_path):
    log = JsonlFile(tmp_path / "m.jsonl")
    for step in range(5):
        log.append({"step": step})
    seen = log.size()
    before = log.path.read_bytes()
    log.append({"step": 5})
    log.truncate(seen)
    assert log.path.read_bytes() == before
    log.append({"step": 5, "again": True})
    assert [r["step"] for r in read_jsonl(log.path)] == [0, 1, 2, 3, 4, 5]


def test_truncate_leaves_a_log_that_has_lost_rows_as_it_is(tmp_path):
    log = JsonlFile(tmp_path / "m.jsonl")
    log.append({"step": 1})
    log.truncate(1000)
    assert read_jsonl(log.path) == [{"step": 1}]


def test_a_killed_writer_leaves_every_whole_row(tmp_path):
    path = tmp_path / "m.jsonl"
    code = f"""
import os
from pathlib import Path
from runner.rundir.json_files import JsonlFile
log = JsonlFile(Path({str(path)!r}))
for step in range(100): log.append({{"step": step}})
os.kill(os.getpid(), 9)
"""
    assert python("-c", code).returncode == -9
    assert [r["step"] for r in read_jsonl(path)] == list(range(100))


def test_a_torn_row_is_dropped_before_the_next_one(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert [r["step"] for r in read_jsonl(path)] == [1]
    JsonlFile(path).append({"step": 2})
    assert [r["step"] for r in read_jsonl(path)] == [1, 2]


@pytest.mark.long
def test_a_row_of_several_megabytes_is_read_and_dropped_whole_where_it_is_torn(tmp_path):
    path = tmp_path / "m.jsonl"
    wide = {f"auc/city={i}": 0.5123456789 for i in range(100_000)}
    log = JsonlFile(path)
    for step in (1, 2):
        log.append({"step": step, **wide})
    log.close()
    whole = path.read_bytes()
    assert len(whole) > 6 << 20
    assert [(r["step"], len(r)) for r in read_jsonl(path)] == [(1, 100_001), (2, 100_001)]
    path.write_bytes(whole + whole[: 5 << 19])
    JsonlFile(path).append({"step": 3})
    assert path.read_bytes() == whole + b'{"step": 3}\n'
    path.write_bytes(whole[: 5 << 19])
    JsonlFile(path).truncate(1 << 30)
    assert path.read_bytes() == b""


def test_a_row_that_is_nested_without_end_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": ' + "[" * 100_000 + '\n{"step": 1}\n')
    assert read_jsonl(path) == [{"step": 1}]


def test_write_json_leaves_the_old_file_whole_when_the_new_one_fails(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_json(path, {"status": "completed"})

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"status": "failed"})
    assert read_json(path) == {"status": "completed"}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "meta.json").write_text('{"signa')
    with pytest.raises(UserError, match=r"meta\.json: cannot be read"):
        read_json(tmp_path / "meta.json")


def test_a_log_larger_than_one_can_be_is_left_out(tmp_path):
    """A sparse file of 1 TB takes no place on a disk, and would take an hour to read."""
    path = tmp_path / "perf.jsonl"
    path.write_text('{"step": 1}\n')
    assert read_jsonl(path) == [{"step": 1}]
    os.truncate(path, 1 << 40)
    assert read_jsonl(path) == []
