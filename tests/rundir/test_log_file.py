"""A run's log is closed even where the disk is full."""

from __future__ import annotations

import logging

import pytest

from runner.rundir import log_file
from runner.rundir.log_file import close_log_file, open_log_file


def test_a_full_disk_loses_the_end_of_the_log_and_says_so(tmp_path, monkeypatch, capsys):
    full = open("/dev/full", "ab", buffering=1 << 16)  # noqa: SIM115  its handler closes it
    monkeypatch.setattr(log_file, "open_for_append", lambda path: full)
    handler = open_log_file(tmp_path / "log.txt")
    logging.getLogger("runner").warning("the last words")
    close_log_file(handler)
    told = f"{tmp_path / 'log.txt'}: its end is lost: No space left on device"
    assert told in capsys.readouterr().err
    assert handler not in logging.getLogger().handlers


@pytest.mark.parametrize("name", ["runner", "another.library"])
def test_what_is_logged_stands_in_the_file(tmp_path, name):
    handler = open_log_file(tmp_path / "log.txt")
    logging.getLogger(name).warning("a line of %s", name)
    close_log_file(handler)
    assert f"a line of {name}" in (tmp_path / "log.txt").read_text()
