"""The database: its content, and what happens when it is damaged, locked, or the disk is full."""

import os
import shutil
import sqlite3

import pytest

from runner.sweep.database import SweepDatabaseError, read_facts
from tests.sweep.driver import grid, run
from tests.sweep.test_sweep import board, starts


def rows(directory, query):
    db = sqlite3.connect(directory / "study.db")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def test_the_database_holds_every_job_and_every_try(tmp_path):
    run(tmp_path, grid(do=["ok", "raise"]), retries=1)
    jobs = rows(tmp_path, "SELECT status, tries, error FROM runner_jobs ORDER BY status")
    assert jobs == [("completed", 1, None), ("failed", 2, "at step 3 of 'top.0'")]
    tries = rows(tmp_path, "SELECT status, exit_code, ended >= started FROM runner_tries")
    assert sorted(tries) == [("completed", 0, 1), ("failed", 1, 1), ("failed", 1, 1)]
    assert not (tmp_path / "study.db-wal").exists()


def test_a_database_with_a_column_of_an_earlier_version_goes_on(tmp_path):
    assert run(tmp_path, grid(value=[0.1])) == 0
    assert "seconds" not in [c[1] for c in rows(tmp_path, "PRAGMA table_info(runner_jobs)")]
    with sqlite3.connect(tmp_path / "study.db") as db:
        db.execute("ALTER TABLE runner_jobs ADD COLUMN seconds REAL NOT NULL DEFAULT 0")
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    found = rows(tmp_path, "SELECT status, tries, seconds FROM runner_jobs")
    assert found == [("completed", 1, 0), ("completed", 1, 0)]


def test_a_sweep_that_cannot_be_read_where_nothing_can_be_written_is_to_be_copied(
    tmp_path, monkeypatch
):
    (tmp_path / "study.db").write_bytes(b"no database at all, and long enough to be read as one")
    with pytest.raises(SweepDatabaseError, match="the command that began the sweep goes on with"):
        read_facts(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SweepDatabaseError, match="cannot be written; a copy of it elsewhere can"):
        read_facts(tmp_path)


@pytest.mark.parametrize("harm", ["cut", "overwritten", "flipped"])
def test_a_damaged_database_is_reported_and_kept_and_no_done_job_runs_again(tmp_path, capsys, harm):
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    path = tmp_path / "study.db"
    content = path.read_bytes()
    if harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "overwritten":
        path.write_bytes(b"not a database at all, " * 1000)
    else:
        path.write_bytes(content[:4096] + bytes(b ^ 0xFF for b in content[4096:]))
    damaged = path.read_bytes()
    assert run(tmp_path, grid(value=[0.1, 0.2, 0.3])) == 0
    assert "is damaged" in capsys.readouterr().err
    assert (tmp_path / "study.db.damaged-1").read_bytes() == damaged
    assert sorted(starts(tmp_path).values()) == [1, 1, 1]
    assert rows(tmp_path, "SELECT count(*) FROM runner_jobs WHERE status = 'completed'") == [(3,)]
    path.write_bytes(damaged)
    assert run(tmp_path, grid(value=[0.1])) == 0
    assert (tmp_path / "study.db.damaged-2").exists()


def test_a_database_locked_by_another_program_is_reported_before_anything_starts(
    tmp_path, monkeypatch
):
    assert run(tmp_path, grid(value=[0.1])) == 0
    monkeypatch.setattr("runner.sweep.database.LOCK_TIMEOUT_S", 0.2)
    other = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SweepDatabaseError, match=r"study.db is locked by another program"):
        run(tmp_path, grid(value=[0.1, 0.2]))
    other.execute("ROLLBACK")
    other.close()
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0


def test_a_database_locked_while_jobs_run_stops_the_sweep_with_the_reason(
    tmp_path, monkeypatch, capsys
):
    from runner.sweep import database

    monkeypatch.setattr("runner.sweep.database.LOCK_TIMEOUT_S", 0.2)
    others = []

    def lock_after(self, number, pid, pid_start):
        other = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        others.append(other)

    with monkeypatch.context() as patch:
        patch.setattr(database.SweepDatabase, "record_process", lock_after)
        assert run(tmp_path, grid(value=[0.1, 0.2])) == 1
    output = capsys.readouterr()
    assert "the sweep stopped: " in output.err
    assert "locked by another program" in output.err
    assert sorted(r["status"] for r in board(tmp_path)) == ["completed", "waiting"]
    others[0].close()
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    assert sorted(starts(tmp_path).values()) == [1, 1]


def test_a_database_of_another_version_is_refused(tmp_path):
    assert run(tmp_path, grid(value=[0.1])) == 0
    db = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    db.execute("UPDATE runner_sweep SET value = '99' WHERE key = 'version'")
    db.close()
    with pytest.raises(SweepDatabaseError, match="another version"):
        run(tmp_path, grid(value=[0.1]))


@pytest.mark.long
def test_a_full_disk_stops_the_sweep_with_a_clear_error(tmp_path, tiny_disk):
    code, text = tiny_disk(1 << 20)
    assert code == 1
    assert "the sweep stopped: " in text
    assert "No space left" in text or "disk is full" in text


@pytest.fixture
def tiny_disk(tmp_path):
    """Return a function that runs a sweep on a file system that fills up; it must mount one."""
    import json
    import subprocess
    import sys

    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    place = tmp_path / "disk"
    place.mkdir()

    def sweep(num_bytes: int) -> tuple[int, str]:
        request = {"grid": {"number": list(range(3000))}, "start": "empty"}
        words = json.dumps({"directory": str(place / "s"), **request})
        script = f'mount -t tmpfs -o size={num_bytes} none {place} && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-m"]
        done = subprocess.run(
            [*command, "tests.sweep.driver", words], capture_output=True, text=True, check=False
        )
        if "mount" in done.stderr or "unshare" in done.stderr:
            pytest.skip("not allowed to mount a small file system here")
        return done.returncode, done.stdout + done.stderr

    return sweep
