from __future__ import annotations

import os
import time

import pytest
import xxhash

from runner.data.core import file_hashes
from runner.data.core.file_hashes import hash_file

YEAR_AGO = time.time() - 3e7


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """List a number for each file that is read, with a cache of their own."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    made = []
    real = xxhash.xxh3_128
    monkeypatch.setattr(file_hashes.xxhash, "xxh3_128", lambda: made.append(1) or real())
    return made


def write(path, content, at=YEAR_AGO):
    path.write_bytes(content)
    os.utime(path, (at, at))
    return path


def test_the_hash_is_that_of_all_bytes_and_a_file_is_read_once(tmp_path, reads):
    content = bytes(range(100)) * 10_001  # of several pieces, in which it is read
    expected = xxhash.xxh3_128_hexdigest(content)
    path = write(tmp_path / "a.csv", content)
    (tmp_path / "b.csv").symlink_to(path)
    assert [hash_file(path), hash_file(path), hash_file(tmp_path / "b.csv")] == [expected] * 3
    assert len(reads) == 1


def test_a_large_file_is_announced(tmp_path, monkeypatch, reads, capsys):
    monkeypatch.setattr(file_hashes, "LARGE_BYTES", 4)
    path = write(tmp_path / "a.csv", b"1234")
    hash_file(path), hash_file(path), hash_file(write(tmp_path / "b.csv", b"123"))
    assert capsys.readouterr().err == f"{path}: 0 GB are read once, to know them again\n"


def test_another_content_of_the_same_size_has_another_hash(tmp_path, reads):
    path = write(tmp_path / "a.csv", b"before")
    first = hash_file(path)
    write(path, b"behind", YEAR_AGO + 1)
    assert hash_file(path) not in ("", first)
    # even with the old time it is another file
    write(tmp_path / "new", b"beyond", YEAR_AGO + 1).replace(path)
    assert hash_file(path) == xxhash.xxh3_128_hexdigest(b"beyond")


def test_a_file_of_the_future_is_remembered(tmp_path, reads):
    path = write(tmp_path / "a.csv", b"x", time.time() + 3600)
    assert hash_file(path) == hash_file(path)
    assert len(reads) == 1


def test_a_file_that_was_just_written_is_not_remembered(tmp_path, reads):
    path = write(tmp_path / "a.csv", b"x", time.time())
    assert hash_file(path) == hash_file(path)
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["", "[1, 2", "3", "[]", "null", "{}"])
def test_what_is_remembered_may_be_damaged(tmp_path, reads, damage):
    path = write(tmp_path / "a.csv", b"x")
    digest = hash_file(path)
    (known,) = (tmp_path / "cache" / file_hashes.FOLDER).iterdir()
    known.write_text(damage)
    assert [hash_file(path), hash_file(path)] == [digest] * 2
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_a_further_read(tmp_path, monkeypatch, reads):
    monkeypatch.setenv("RUNNER_CACHE", str(write(tmp_path / "file", b"")))
    path = write(tmp_path / "a.csv", b"x")
    assert hash_file(path) == hash_file(path)
    assert len(reads) == 2
