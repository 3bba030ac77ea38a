"""Links in folders of data: no row behind them is missing or counted twice without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.data.core.source_files import fingerprint_path, nearest_path
from runner.data.files.file_list import find_files
from runner.errors import DataError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file, and a link to a folder elsewhere with another."""
    for name in ("data/a.csv", "elsewhere/b.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"label\n{len(name)}\n")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "data"


def found(path: Path | str) -> list[str]:
    return [str(file) for file in find_files(str(path), "csv", key="dataset.path")]


def test_a_link_to_a_folder_is_followed(data):
    both = [f"{data}/a.csv", f"{data}/more/b.csv"]
    assert found(data) == both
    assert found(f"{data}/**/*.csv") == both
    before = fingerprint_path(data)
    (data.parent / "elsewhere" / "b.csv").write_text("label\n1\n")
    assert fingerprint_path(data) != before


def test_a_link_to_what_is_found_itself_adds_no_rows(data):
    (data / "latest.csv").symlink_to("a.csv")
    (data / "latest").symlink_to("more")
    (data / "up").symlink_to(data)  # a circle
    both = [f"{data}/a.csv", f"{data}/more/b.csv"]
    assert found(data) == both
    assert found(f"{data}/**/*.csv") == both


def test_equal_files_of_a_store_of_contents_are_both_read(data):
    (data / "more").unlink()
    for name in ("b.csv", "c.csv"):
        (data / name).symlink_to("../elsewhere/b.csv")
    assert len(found(data)) == 3


def test_a_link_to_nothing_is_refused(data):
    (data / "c.csv").symlink_to("/nowhere/c.csv")
    (data / "note.md").symlink_to("/nowhere/note.md")  # no file of the table
    for path in (data, f"{data}/*.csv"):
        with pytest.raises(DataError, match=r"c\.csv is a link to /nowhere/c\.csv, which leads to"):
            found(path)
    assert "nearest" not in nearest_path(data / "c.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_may_not_be_read_is_refused(data):
    (data.parent / "elsewhere").chmod(0)
    with pytest.raises(PermissionError):
        found(data)


def test_a_run_directory_is_no_data(data):
    for name in ("config.yaml", "meta.json"):
        (data / name).touch()
    with pytest.raises(DataError, match="data: is a run directory, no data"):
        found(data)


def test_runs_and_sweeps_in_a_folder_of_data_are_no_rows(data):
    before = fingerprint_path(data)
    outputs = {"run": ("config.yaml", "meta.json", "log.txt"), "sweep": ("study.db",)}
    for folder, names in outputs.items():
        (data / "outputs" / folder).mkdir(parents=True)
        for name in (*names, "leaderboard.csv"):
            (data / "outputs" / folder / name).touch()
    assert found(data) == [f"{data}/a.csv", f"{data}/more/b.csv"]
    assert fingerprint_path(data) == before
    (data / "outputs" / "sweep" / "study.db").unlink()
    assert f"{data}/outputs/sweep/leaderboard.csv" in found(data)  # of somebody else
