"""Optuna's own tables in `study.db`, so that optuna-dashboard and Optuna itself read every sweep.

They are made here as Optuna 5 makes them, which a test compares. `optuna.storages.RDBStorage` is
not used for a grid, since its import costs 0.4 s of processor time and each trial 2 ms, where these
statements cost 0.03 ms. Nor does it make the tables: it makes them one by one, and a kill between a
table and its index leaves a study that Optuna can no longer open.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.rundir.readers import parse_number

SCHEMA_VERSION, LIBRARY_VERSION, ALEMBIC_REVISION = 12, "5.0.0", "v3.2.0.a"
_ATTRIBUTES = """
CREATE TABLE IF NOT EXISTS {of}_{kind}_attributes (
    {of}_{kind}_attribute_id INTEGER NOT NULL, {of}_id INTEGER, "key" VARCHAR(512), value_json TEXT,
    PRIMARY KEY ({of}_{kind}_attribute_id), UNIQUE ({of}_id, "key"),
    FOREIGN KEY({of}_id) REFERENCES {table} ({of}_id));
"""
CREATE_TABLES = f"""
CREATE TABLE IF NOT EXISTS studies (
    study_id INTEGER NOT NULL, study_name VARCHAR(512) NOT NULL, PRIMARY KEY (study_id));
CREATE UNIQUE INDEX IF NOT EXISTS ix_studies_study_name ON studies (study_name);
CREATE TABLE IF NOT EXISTS version_info (
    version_info_id INTEGER NOT NULL, schema_version INTEGER, library_version VARCHAR(256),
    PRIMARY KEY (version_info_id), CHECK (version_info_id=1));
CREATE TABLE IF NOT EXISTS study_directions (
    study_direction_id INTEGER NOT NULL, direction VARCHAR(8) NOT NULL, study_id INTEGER NOT NULL,
    objective INTEGER NOT NULL, PRIMARY KEY (study_direction_id), UNIQUE (study_id, objective),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
{_ATTRIBUTES.format(of="study", kind="user", table="studies")}
{_ATTRIBUTES.format(of="study", kind="system", table="studies")}
CREATE TABLE IF NOT EXISTS trials (
    trial_id INTEGER NOT NULL, number INTEGER, study_id INTEGER, state VARCHAR(8) NOT NULL,
    datetime_start DATETIME, datetime_complete DATETIME, PRIMARY KEY (trial_id),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
CREATE INDEX IF NOT EXISTS ix_trials_study_id ON trials (study_id);
{_ATTRIBUTES.format(of="trial", kind="user", table="trials")}
{_ATTRIBUTES.format(of="trial", kind="system", table="trials")}
CREATE TABLE IF NOT EXISTS trial_params (
    param_id INTEGER NOT NULL, trial_id INTEGER, param_name VARCHAR(512), param_value FLOAT,
    distribution_json TEXT, PRIMARY KEY (param_id), UNIQUE (trial_id, param_name),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE IF NOT EXISTS trial_values (
    trial_value_id INTEGER NOT NULL, trial_id INTEGER NOT NULL, objective INTEGER NOT NULL,
    value FLOAT, value_type VARCHAR(7) NOT NULL, PRIMARY KEY (trial_value_id),
    UNIQUE (trial_id, objective), FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE IF NOT EXISTS trial_intermediate_values (
    trial_intermediate_value_id INTEGER NOT NULL, trial_id INTEGER NOT NULL, step INTEGER NOT NULL,
    intermediate_value FLOAT, intermediate_value_type VARCHAR(7) NOT NULL,
    PRIMARY KEY (trial_intermediate_value_id), UNIQUE (trial_id, step),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE IF NOT EXISTS trial_heartbeats (
    trial_heartbeat_id INTEGER NOT NULL, trial_id INTEGER NOT NULL, heartbeat DATETIME NOT NULL,
    PRIMARY KEY (trial_heartbeat_id), UNIQUE (trial_id),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE IF NOT EXISTS alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT OR IGNORE INTO version_info VALUES (1, {SCHEMA_VERSION}, '{LIBRARY_VERSION}');
INSERT OR IGNORE INTO alembic_version VALUES ('{ALEMBIC_REVISION}');
"""


class GridAxis:
    """The values of a grid for one key: numbers if all of them are, else choices."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts))
        numbers = [n for text in self.texts if (n := parse_number(text)) is not None]
        self.is_numeric = len(numbers) == len(self.texts)
        kind, attributes = "CategoricalDistribution", dict[str, Any](choices=self.texts)
        if self.is_numeric:
            kind = "FloatDistribution"
            attributes = {"step": None, "low": min(numbers), "high": max(numbers), "log": False}
        self.distribution_json = json.dumps({"name": kind, "attributes": attributes})

    def value(self, text: str) -> float:
        return float(text) if self.is_numeric else float(self.texts.index(text))


def new_study(db: sqlite3.Connection, name: str, metric: str, direction: str) -> int:
    """Replace the study of this name by an empty one, within the caller's transaction.

    Returns:
        The id of the study.
    """
    for (old_id,) in db.execute("SELECT study_id FROM studies WHERE study_name=?", (name,)):
        trials = "(SELECT trial_id FROM trials WHERE study_id=?)"
        for table in ("params", "values", "user_attributes", "system_attributes"):
            db.execute(f"DELETE FROM trial_{table} WHERE trial_id IN {trials}", (old_id,))
        for table in ("trials", "study_directions", "study_system_attributes", "studies"):
            db.execute(f"DELETE FROM {table} WHERE study_id=?", (old_id,))
    study_id = db.execute("INSERT INTO studies (study_name) VALUES (?)", (name,)).lastrowid
    optuna_direction = "MAXIMIZE" if direction == "max" else "MINIMIZE"
    db.execute(
        "INSERT INTO study_directions (direction, study_id, objective) VALUES (?, ?, 0)",
        (optuna_direction, study_id),
    )
    db.execute(
        "INSERT INTO study_system_attributes (study_id, key, value_json) VALUES (?, ?, ?)",
        (study_id, "study:metric_names", json.dumps([metric])),
    )
    return int(study_id or 0)


def add_trial(
    db: sqlite3.Connection,
    study_id: int,
    number: int,
    params: Mapping[str, str],
    axes: Mapping[str, GridAxis],
    outcome: tuple[float | None, float | None],
) -> None:
    """Insert a trial that has ended, within the caller's transaction.

    Args:
        number: of the trial in its study.
        params: its values by key, as they are written in overrides.
        axes: of the grid by key.
        outcome: value (None: it failed) and seconds.
    """
    value, seconds = outcome
    now = time.time()
    times = [_format_time(now - (seconds or 0.0)), _format_time(now)]
    state = "FAIL" if value is None else "COMPLETE"
    insert = "INSERT INTO trials (number, study_id, state, datetime_start, datetime_complete) "
    values = (number, study_id, state, *times)
    trial_id = db.execute(f"{insert} VALUES (?, ?, ?, ?, ?)", values).lastrowid
    rows: Sequence[tuple[Any, ...]] = [
        (trial_id, key, axes[key].value(text), axes[key].distribution_json)
        for key, text in params.items()
    ]
    columns = "(trial_id, param_name, param_value, distribution_json)"
    db.executemany(f"INSERT INTO trial_params {columns} VALUES (?, ?, ?, ?)", rows)
    if value is not None:
        columns = "(trial_id, objective, value, value_type)"
        insert = f"INSERT INTO trial_values {columns} VALUES (?, 0, ?, 'FINITE')"
        db.execute(insert, (trial_id, value))


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f"{seconds % 1:.6f}"[1:]
