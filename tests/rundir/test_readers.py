"""Readers of the files of a run that may be unfinished or damaged."""

import json

import pytest

from runner.errors import UserError
from runner.rundir.json_files import read_jsonl
from runner.rundir.readers import (
    as_number,
    last_line,
    last_row,
    read_optional_json,
    read_signed_meta,
)


def test_the_last_line_is_what_a_terminal_would_show(tmp_path):
    log = tmp_path / "job.log"
    log.write_bytes(b"before\n")
    assert last_line(log, 7) is None
    log.write_bytes(b"before\nstep 1\rstep 2\r\x1b[1;31merror:\x1b[0m it broke \xff\n\n  \n")
    assert last_line(log, 7) == "it broke �"
    assert last_line(tmp_path / "none") is None


def test_the_last_line_and_row_of_a_long_file_are_found_from_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"step": n, "text": "x" * 1000}) for n in range(200)]
    path.write_text("\n".join(rows) + '\n{"step": 2')
    assert last_row(path)["step"] == 199
    assert last_line(path) == '{"step": 2'


def test_torn_and_damaged_rows_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xff\n[1]\n\n{"step": 2}\n{"step": 3}')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
    assert last_row(path)["step"] == 3
    assert read_jsonl(tmp_path / "none") == []
    assert last_row(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", None])
def test_a_file_that_may_be_absent_or_damaged_reads_as_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    assert read_optional_json(tmp_path / "x.json") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "no signature"), ('{"signature": 1}', "no signature")],
)
def test_a_damaged_meta_is_an_error_that_names_the_file(tmp_path, text, message):
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(UserError, match=f"meta.json: .*{message}"):
        read_signed_meta(tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), ("Infinity", float("inf")), (True, None), ("0.5", None), (None, None), ([], None)],
)
def test_only_numbers_and_what_json_writes_for_them_are_numbers(value, expected):
    assert as_number(value) == expected
