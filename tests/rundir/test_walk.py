"""Which folders are entered on the way to run directories."""

from __future__ import annotations

from runner.rundir.walk import runs_below, walk_folders
from tests.reporting.report.run_directories import forbid_reading, make_run


def test_links_hidden_folders_and_those_within_runs_are_not_entered(tmp_path):
    run = make_run(tmp_path / "a" / "run")
    make_run(run / "within")
    make_run(tmp_path / ".hidden" / "run")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    deepest = make_run(tmp_path / "1" / "2" / "3" / "4" / "5")
    make_run(tmp_path / "1" / "2" / "3" / "4" / "x" / "6")
    assert set(runs_below(tmp_path)) == {run, deepest}
    assert runs_below(run) == []


def test_a_link_to_a_run_elsewhere_is_one_and_a_link_to_one_that_was_found_is_not(tmp_path):
    run, elsewhere = make_run(tmp_path / "in" / "run"), make_run(tmp_path / "out" / "run")
    (tmp_path / "in" / "latest").symlink_to(run)
    (tmp_path / "in" / "other").symlink_to(elsewhere)
    assert set(runs_below(tmp_path / "in")) == {run, tmp_path / "in" / "other"}


def test_a_name_that_is_taken_out_is_not_entered_and_what_cannot_be_read_is_noted(
    tmp_path, monkeypatch
):
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "b" / "inner").mkdir(parents=True)
    forbid_reading(monkeypatch, tmp_path / "locked")
    unreadable: list = []
    seen = []
    for path, below, names in walk_folders(tmp_path, unreadable):
        seen.append(path.name)
        assert set(below) <= names
        if path.name == "a":
            below.clear()
    assert seen[1:] == ["a", "b", "inner"]
    assert unreadable == [(tmp_path / "locked", "cannot be read: Permission denied")]
