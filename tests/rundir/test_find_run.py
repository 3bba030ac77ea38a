"""Which run a folder of runs stands for."""

from __future__ import annotations

import os

import pytest

from runner.errors import UserError
from runner.rundir.find_run import find_run
from tests.reporting.report.run_directories import make_run


def aged(run, days: int):
    """Let a run have begun some days ago."""
    status = (run / "meta.json").stat()
    os.utime(run / "meta.json", (status.st_atime, status.st_mtime - 86400 * days))
    return run


def test_the_newest_training_is_taken_whatever_else_lies_there(tmp_path, capsys):
    good = aged(make_run(tmp_path / "deep" / "good"), 3)
    aged(make_run(tmp_path / "old"), 5)
    make_run(tmp_path / "eval", kind="eval", source={"path": str(good)})
    (make_run(tmp_path / "damaged") / "meta.json").write_text("{")
    make_run(tmp_path / ".deleting-x")
    assert find_run(tmp_path) == good
    told = capsys.readouterr().err
    assert f"{tmp_path / 'damaged' / 'meta.json'}: cannot be read" in told
    assert f"its newest training is taken: {good}" in told


def test_a_folder_whose_only_run_is_damaged_says_so(tmp_path, capsys):
    (make_run(tmp_path / "damaged") / "meta.json").write_text("{")
    with pytest.raises(UserError, match=r"no run directory: it has no meta\.json"):
        find_run(tmp_path)
    assert "it is passed over" in capsys.readouterr().err


def test_a_link_is_the_run_that_it_names_now(tmp_path):
    first, second = (make_run(tmp_path / name) for name in ("first", "second"))
    link = tmp_path / "latest"
    link.symlink_to("first")
    found = find_run(link)
    link.unlink()
    link.symlink_to("second")
    assert (found, find_run(link)) == (first, second)
    link.unlink()
    link.symlink_to("gone")
    with pytest.raises(UserError, match="nothing was trained in"):
        find_run(link)


def test_a_user_whom_nobody_knows_is_a_part_of_a_name_as_in_a_shell():
    with pytest.raises(UserError, match="~nosuchuser/run"):
        find_run("~nosuchuser/run")
