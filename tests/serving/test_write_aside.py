"""What killed commands left beside a folder that is written aside."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.machine.cache_folder import cache_root
from runner.rundir.lock import LOCK_FILE, FolderLock
from runner.serving.write_aside import write_aside


def leave(folder: Path, *, lock: str | None, content: str = "", age_s: float = 0) -> Path:
    folder.mkdir()
    if content:
        (folder / content).mkdir()
        (folder / content / "model.pt2").write_text("half")
    if lock is not None:
        (folder / LOCK_FILE).write_text(lock)
    os.utime(folder, (os.path.getmtime(folder) - age_s,) * 2)
    return folder


def test_what_killed_commands_left_is_removed_and_nothing_else(tmp_path):
    dead = [
        leave(tmp_path / ".model.tmp-a", lock="{}", content="model"),
        leave(tmp_path / ".model.tmp-b", lock=None, age_s=7200),  # before it had a lock
        leave(tmp_path / ".model.tmp-c", lock="", age_s=7200),
        leave(tmp_path / ".other.tmp-d", lock="{}", content="other"),  # of another --out
    ]
    kept = [
        leave(tmp_path / ".model.tmp-e", lock=None),  # it may have begun just now
        leave(tmp_path / ".model.tmp-f", lock=None, content="model", age_s=7200),
        leave(tmp_path / ".other.tmp-g", lock="{}", content="checkpoints"),  # a run of this name
        leave(tmp_path / ".other.tmp-h", lock=None, age_s=7200),  # of another program
    ]
    running = leave(tmp_path / ".model.tmp-i", lock=None, content="model")
    held = FolderLock(running)
    with write_aside(tmp_path / "model") as folder:
        (folder / "file").write_text("whole")
    held.release()
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in (*kept, running))
    assert (tmp_path / "model" / "file").read_text() == "whole"


def test_a_colon_in_the_name_of_a_folder_makes_no_address_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_CACHE", "at_10:00")
    cache_root().mkdir()
    pq.write_table(pa.table({"id": [1]}), cache_root() / "ids.parquet")
    with write_aside(Path("at_10:00/model")) as folder:
        pq.write_table(pa.table({"id": [1]}), folder / "ids.parquet")
    assert len(list(tmp_path.glob("at_10:00/**/ids.parquet"))) == 2
