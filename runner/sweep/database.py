"""`study.db`: the tries of all jobs, with times and outcomes. Only the sweep's process writes it.

The record of a job is its run directory. The database keeps what is not there (tries, times,
errors of jobs that died), and any SQLite browser can read it while the sweep runs. Our tables start
with `runner_`. The others are Optuna's, with the trials of a search or a grid
(runner/sweep/optuna_schema.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.regular_files import check_run_files
from runner.rundir.seal import is_sealed, make_seal
from runner.rundir.secrets import mask_values
from runner.sweep.optuna_schema import CREATE_TABLES, GridAxis, add_trial, new_study
from runner.sweep.plan import SweepJob

DATABASE_FILE = "study.db"
_VERSION = "1"
SWEEP_FILES = (DATABASE_FILE, *(f"{DATABASE_FILE}-{end}" for end in ("wal", "shm", "journal")))
LOCK_TIMEOUT_S = 10  # how long to wait for another program's lock
_TABLES = """
CREATE TABLE IF NOT EXISTS runner_sweep (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runner_jobs (
    key TEXT PRIMARY KEY, signature TEXT NOT NULL, overrides TEXT NOT NULL, folder TEXT NOT NULL,
    status TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, error TEXT);
CREATE TABLE IF NOT EXISTS runner_tries (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, pid INTEGER, pid_start INTEGER,
    started REAL NOT NULL, ended REAL, seconds REAL, exit_code INTEGER, status TEXT, error TEXT);
CREATE INDEX IF NOT EXISTS runner_open ON runner_tries (id) WHERE ended IS NULL;
"""
_SET_STATUS = "UPDATE runner_jobs SET status=?, error=? WHERE key=?"


class SweepDatabaseError(UserError):
    """The database is locked, damaged, or its disk is full."""


@dataclass(frozen=True)
class UnfinishedTry:
    """A try without a recorded end, because the sweep was killed."""

    id: int
    job: str
    folder: str
    started: float  # seconds since 1970
    pid: int | None
    pid_start: int | None


@dataclass(frozen=True)
class TryResult:
    """How a try ended."""

    status: str  # completed, pruned, interrupted or failed
    seconds: float
    exit_code: int | None = None
    error: str | None = None


class SweepDatabase:
    """The database of one sweep directory, held open by the process that has its lock."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        """Open or make the database. A damaged one is put aside with a warning, never overwritten.

        Raises:
            SweepDatabaseError: if it is locked, of another version, or cannot be written.
        """
        check_run_files(folder, SWEEP_FILES, (".launcher",))
        self.path = folder / DATABASE_FILE
        if self.path.exists() and (damage := self._damage()):
            copy = _put_aside(self.path)
            warn(
                f"{self.path} is damaged ({damage}); it is kept as {copy.name}. What is done is "
                "known from the run directories; tries and times of earlier jobs are not shown"
            )
        self._db = self._open()
        self._trials = (0, 0)  # id of a grid's Optuna study, and its number of trials

    def _damage(self) -> str | None:
        try:
            with closing(self._connect()) as db:
                report = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
        except sqlite3.DatabaseError as error:
            if _is_busy(error) or "unable to open" in str(error):
                raise self._error(error) from error
            return str(error)
        return None if report == ["ok"] else "; ".join(report)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None)

    def _open(self) -> sqlite3.Connection:
        try:
            db = self._connect()
            _check_schema(self.path, db)
            # A write-ahead log loses nothing when this process is killed at any instant, and lets
            # others read meanwhile. SQLite falls back to a journal where the file system lacks it.
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(f"BEGIN IMMEDIATE;{_TABLES}{CREATE_TABLES}COMMIT;")
            db.execute("INSERT OR IGNORE INTO runner_sweep VALUES ('version', ?)", (_VERSION,))
            row = db.execute("SELECT value FROM runner_sweep WHERE key='version'").fetchone()
        except sqlite3.Error as error:
            raise self._error(error) from error
        if row[0] != _VERSION:
            raise SweepDatabaseError(
                f"{self.path}: written by another version of the runner (layout {row[0]}, this one "
                f"writes {_VERSION}); another hydra.sweep.dir begins a new one"
            )
        return db

    def _error(self, error: sqlite3.Error) -> SweepDatabaseError:
        if _is_busy(error):
            return SweepDatabaseError(
                f"{self.path} is locked by another program (waited {LOCK_TIMEOUT_S:g} s); close "
                "what is writing to it and give the same command again"
            )
        return SweepDatabaseError(
            f"{self.path}: {error}; once that is mended, the same command goes on"
        )

    def _write(self, *statements: tuple[str, Sequence[Any]]) -> int:
        """Run all statements or none, and return the id of the row that the last one inserted."""
        row_id = None
        with self._transaction() as db:
            for statement, values in statements:
                row_id = db.execute(statement, mask_values(values, everything=False)).lastrowid
        return int(row_id or 0)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _read(self, query: str) -> list[Any]:
        try:
            return self._db.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Record facts about the sweep as a whole, such as its command."""
        insert = "INSERT OR REPLACE INTO runner_sweep VALUES (?, ?)"
        self._write(*((insert, (key, json.dumps(value))) for key, value in facts.items()))

    def add_jobs(self, jobs: Iterable[tuple[SweepJob, str]]) -> None:
        """Record jobs with their folders. Records of earlier tries stay."""
        insert = (
            "INSERT INTO runner_jobs (key, signature, overrides, folder, status) "
            "VALUES (?, ?, ?, ?, 'waiting') ON CONFLICT (key) DO UPDATE SET "
            "overrides=excluded.overrides, folder=excluded.folder"
        )
        rows = [(j.key, j.signature, json.dumps(j.overrides), folder) for j, folder in jobs]
        self._write(*((insert, row) for row in rows))

    def job_folders(self) -> dict[str, str]:
        """Return the name of each job's folder, by its key."""
        rows = self._read("SELECT key, folder FROM runner_jobs")
        return {key: self._plain(folder) for key, folder in rows}

    def ended_jobs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return signature and overrides of each job that was completed or pruned.

        Raises:
            SweepDatabaseError: if the overrides of one are damaged.
        """
        query = (
            "SELECT signature, overrides FROM runner_jobs WHERE status IN ('completed','pruned')"
        )
        try:
            return [(str(row[0]), tuple(map(str, json.loads(row[1])))) for row in self._read(query)]
        except (ValueError, TypeError, RecursionError) as error:
            raise SweepDatabaseError(f"{self.path}: damaged overrides of a job: {error}") from error

    def unfinished_tries(self) -> list[UnfinishedTry]:
        rows = self._read(
            "SELECT t.id, t.job, j.folder, t.started, t.pid, t.pid_start FROM runner_tries t "
            "JOIN runner_jobs j ON j.key = t.job WHERE t.ended IS NULL"
        )
        return [UnfinishedTry(row[0], row[1], self._plain(row[2]), *row[3:]) for row in rows]

    def _plain(self, folder: object) -> str:
        """Return the name of a job's folder.

        Raises:
            SweepDatabaseError: if it is a path, which may lead out of the sweep's directory.
        """
        if not isinstance(folder, str) or folder in ("", ".", "..") or {"/", "\0"} & set(folder):
            raise SweepDatabaseError(f"{self.path}: damaged: {folder!r} is no folder of the sweep")
        return folder

    def begin_try(self, key: str) -> int:
        """Record a try before its process starts, so that every process is known; return its id."""
        return self._write(
            ("UPDATE runner_jobs SET status='running', tries=tries+1 WHERE key=?", (key,)),
            ("INSERT INTO runner_tries (job, started) VALUES (?, ?)", (key, time.time())),
        )

    def record_process(self, try_id: int, pid: int, pid_start: int | None) -> None:
        self._write(
            ("UPDATE runner_tries SET pid=?, pid_start=? WHERE id=?", (pid, pid_start, try_id))
        )

    def end_try(self, try_id: int, key: str, try_result: TryResult) -> None:
        update = "UPDATE runner_tries SET ended=?, seconds=?, exit_code=?, status=?, error=?"
        status, error = try_result.status, try_result.error
        values = (time.time(), try_result.seconds, try_result.exit_code, status, error, try_id)
        self._write((f"{update} WHERE id=?", values), (_SET_STATUS, (status, error, key)))

    def set_statuses(self, statuses: Iterable[tuple[str, str, str | None]]) -> None:
        """Record the statuses of jobs that are not running, from their run directories.

        Args:
            statuses: key, status and error of each job.
        """
        self._write(*((_SET_STATUS, (status, error, key)) for key, status, error in statuses))

    def reset_trials(self, name: str, metric: str, direction: str) -> None:
        """Replace the grid's Optuna study by an empty one."""
        with self._transaction() as db:
            self._trials = (new_study(db, name, metric, direction), 0)

    def add_trials(
        self, ended: Iterable[tuple[Mapping[str, str], Mapping[str, GridAxis], tuple[Any, Any]]]
    ) -> None:
        """Add jobs that have ended as trials to the grid's Optuna study.

        Args:
            ended: values by key, axes by key, and value and seconds of each job.
        """
        study_id, number = self._trials
        with self._transaction() as db:
            for params, axes, outcome in ended:
                add_trial(db, study_id, number, params, axes, outcome)
                number += 1
        self._trials = (study_id, number)

    def close(self) -> None:
        self._db.close()


def command_facts(words: Sequence[str], cwd: str) -> dict[str, Any]:
    """Return the facts of a sweep's command, with a seal, since `resume` runs it again."""
    return {"words": list(words), "cwd": cwd, "seal": make_seal(_sealed_text(words, cwd))}


def is_own_command(facts: Mapping[str, Any]) -> bool:
    """Return whether this user's runner has recorded the command in the facts of a sweep."""
    return is_sealed(_sealed_text(facts.get("words"), facts.get("cwd")), facts.get("seal"))


def _sealed_text(words: Any, cwd: Any) -> str:
    return f"sweep {json.dumps(mask_values([words, cwd], everything=False))}"


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts written by `write_facts`.

    Raises:
        SweepDatabaseError: if the database cannot be read.
    """
    path = folder / DATABASE_FILE
    query = "SELECT key, value FROM runner_sweep"
    try:
        with closing(_connect_to_read(folder)) as db:
            return {key: json.loads(value) for key, value in db.execute(query)}
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        advice = "the command that began the sweep goes on with it"
        if not os.access(folder, os.W_OK):  # SQLite creates files in its folder even for reading
            advice = "the folder cannot be written; a copy of it elsewhere can be resumed"
        raise SweepDatabaseError(f"{path}: cannot be read: {error}; {advice}") from error


def read_job_states(folder: Path) -> list[tuple[str, str]]:
    """Return status and label of each job that the database knows; write nothing.

    Raises:
        SweepDatabaseError: if there is a database that cannot be read.
    """
    path = folder / DATABASE_FILE
    if not path.exists():
        return []
    query = "SELECT status, overrides FROM runner_jobs ORDER BY rowid"
    try:
        with closing(_connect_to_read(folder)) as db:
            rows = [(str(status), " ".join(json.loads(text))) for status, text in db.execute(query)]
        return [("done" if status == "completed" else status, text) for status, text in rows]
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        raise SweepDatabaseError(f"{path}: {error}") from error


def _connect_to_read(folder: Path) -> sqlite3.Connection:
    """Open the database of a sweep, which may come from an unknown source.

    Raises:
        UserError: if it is no regular file, or holds more than tables.
    """
    check_run_files(folder, SWEEP_FILES, ())
    path = folder / DATABASE_FILE
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCK_TIMEOUT_S)
    _check_schema(path, db)
    return db


def _check_schema(path: Path, db: sqlite3.Connection) -> None:
    """Check that only tables are read: a view is a query, which may run for ever.

    Raises:
        SweepDatabaseError: for a view or a trigger.
    """
    db.execute("PRAGMA trusted_schema=OFF")
    query = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
    for kind, name in db.execute(query):
        raise SweepDatabaseError(
            f"{path}: refused: it holds the {kind} {name}, which is not ours; another "
            "hydra.sweep.dir begins a new one"
        )


def _put_aside(path: Path) -> Path:
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, copy)
    for end in ("-wal", "-shm", "-journal"):  # auxiliary files of the damaged database
        if (companion := path.with_name(path.name + end)).exists():
            os.replace(companion, copy.with_name(copy.name + end))
    return copy


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)
