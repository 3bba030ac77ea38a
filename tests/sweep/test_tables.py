"""Optuna's tables in `study.db`, compared with those that Optuna makes itself."""

import json
import re
import sqlite3
from contextlib import closing
from wsgiref.util import setup_testing_defaults

import optuna
import pytest

from tests.sweep.driver import Empty, grid, run
from tests.sweep.test_search import study

optuna.logging.set_verbosity(optuna.logging.ERROR)


def layout(path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: re.sub(r"\s|IF NOT EXISTS", "", sql) for name, sql in rows}


def test_the_tables_are_those_that_optuna_makes(tmp_path):
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'theirs.db'}")
    assert run(tmp_path / "s", grid(value=[0.1])) == 0
    ours = layout(tmp_path / "s" / "study.db")
    theirs = layout(tmp_path / "theirs.db")
    assert {k: v for k, v in ours.items() if not k.startswith("runner_")} == theirs
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as db:
        versions = db.execute("SELECT schema_version FROM version_info").fetchall()
        revision = db.execute("SELECT * FROM alembic_version").fetchall()
    with closing(sqlite3.connect(tmp_path / "s" / "study.db")) as db:
        assert db.execute("SELECT schema_version FROM version_info").fetchall() == versions
        assert db.execute("SELECT * FROM alembic_version").fetchall() == revision


def test_optuna_reads_a_grid_and_what_failed_in_it(tmp_path):
    jobs = grid(value=[0.1, 0.5], do=["ok", "raise"])
    assert run(tmp_path, jobs, slots=2) == 1
    found = study(tmp_path)
    assert found.direction.name == "MAXIMIZE"
    assert found.metric_names == ["validation/auc"]
    results = {(t.params["value"], t.params["do"]): (t.state.name, t.value) for t in found.trials}
    assert results == {
        (0.1, "ok"): ("COMPLETE", 0.1),
        (0.5, "ok"): ("COMPLETE", 0.5),
        (0.1, "raise"): ("FAIL", None),
        (0.5, "raise"): ("FAIL", None),
    }
    assert found.best_params == {"value": 0.5, "do": "ok"}
    assert all(t.datetime_complete >= t.datetime_start for t in found.trials)


class OfTestSplit(Empty):
    """An evaluation of the test split; `do=both` measures the validation split, too."""

    def __init__(self, job, folder):
        super().__init__(job, folder)
        value = float(job.varying["value"])
        metrics = {"test/auc": value}
        if "do=both" in job.overrides:
            metrics["validation/auc"] = value / 2
        done = {"status": "completed", "step": 1, "metrics": metrics}
        (folder / "result.json").write_text(json.dumps(done))


def test_evaluations_of_the_test_split_are_ranked_while_they_run(tmp_path, capsys):
    def start(plan, flags, name):
        return lambda job, folder, slot: OfTestSplit(job, folder)

    assert run(tmp_path, grid(value=[0.7, 0.6], do=["ok"]), start=start) == 0
    said = capsys.readouterr().out
    assert "test/auc 0.6 " in said and said.count("best so far 0.7 (value=0.7)") == 2
    found = study(tmp_path)
    assert (found.metric_names, found.best_value) == (["test/auc"], 0.7)
    assert run(tmp_path, grid(value=[0.7, 0.6], do=["ok", "both"]), start=start) == 0
    found = study(tmp_path)
    assert (found.metric_names, found.best_value) == (["validation/auc"], 0.35)
    assert [t.state.name for t in found.trials].count("FAIL") == 2, "those without the metric"
    assert "best so far 0.35" in capsys.readouterr().out


def test_a_grid_that_has_grown_is_shown_whole(tmp_path):
    assert run(tmp_path, grid(value=[0.1], do="ok", c=["a", "b"])) == 0
    assert run(tmp_path, grid(value=[0.1], do="ok", c=["a", "b", "c"])) == 0
    found = study(tmp_path)
    assert sorted(t.params["c"] for t in found.trials) == ["a", "b", "c"]


def test_the_dashboard_opens_it(tmp_path):
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    assert run(tmp_path, grid(value=[0.1, 0.5])) == 0
    app = dashboard.wsgi(f"sqlite:///{tmp_path / 'study.db'}")
    statuses = []
    environ = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(environ)
    body = b"".join(app(environ, lambda status, headers, exc_info=None: statuses.append(status)))
    assert statuses[0].startswith("200")
    assert tmp_path.name in body.decode()
