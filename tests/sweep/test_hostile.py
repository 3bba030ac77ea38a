"""A sweep's directory from a stranger: what `resume`, `report` and the same command make of it."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from runner.errors import ConfigError, UserError
from runner.sweep.database import SweepDatabase, command_facts
from runner.sweep.hydra_launcher import parse_launcher
from runner.sweep.run_index import read_result_if_whole
from tests.rundir.test_regular_files import KINDS, plant
from tests.sweep.driver import grid, run

pytestmark = pytest.mark.usefixtures("time_limit")
LIMIT_S = 20


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "sweep").mkdir()
    return tmp_path / "sweep"


def record(place: Path, **facts: object) -> None:
    """Make the database of a sweep that says this of itself."""
    database = SweepDatabase(place, warn=print)
    database.write_facts({"words": ["-m", "seed=1,2"], "cwd": None, **facts})
    database.close()


def change(place: Path, *statements: str) -> None:
    db = sqlite3.connect(place / "study.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize("name", ["study.db", "study.db-wal", "study.db-journal"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_database_is_a_regular_file(command, place, kind, name):
    if name != "study.db":
        record(place)
    outside = plant(kind, place / name)
    assert f"{name}: is a" in command.refused("resume", str(place))
    with pytest.raises(UserError, match=rf"{name}: is a .*, not a regular file"):
        run(place, grid(value=[0.1]))
    assert outside.read_text() == '{"signature": "x"}\n'


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x, x FROM n"


def test_a_view_in_place_of_a_table_is_not_asked(command, place):
    record(place)
    change(place, "DROP TABLE runner_sweep", f"CREATE VIEW runner_sweep(key, value) AS {ENDLESS}")
    assert "refused: it holds the view runner_sweep" in command.refused("resume", str(place))
    with pytest.raises(UserError, match="refused: it holds the view"):
        run(place, grid(value=[0.1]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("words", '"-m"'),
        ("words", "[1, 2]"),
        ("words", "null"),
        ("words", "{"),
        ("words", "[" * 9999),
    ],
)
def test_words_that_are_none_are_refused(command, place, key, value):
    record(place)
    change(place, f"UPDATE runner_sweep SET value='{value}' WHERE key='{key}'")
    message = command.refused("resume", str(place))
    assert "its command was not recorded" in message or "cannot be read" in message


def test_a_folder_of_the_command_that_is_no_text_is_passed_over(command, place):
    record(place, cwd=[1])
    code, out, _ = command("resume", str(place), "--dry-run")
    assert code == 0
    assert "2 jobs: 2 new" in out


@pytest.mark.parametrize(
    "word",
    [
        "hydra/launcher=joblib",
        "hydra.launcher.setup=['touch canary']",
        "hydra.searchpath=[pkg://evil]",
        "remote=ray",
        "+remote.address=ray://elsewhere:10001",
    ],
)
def test_a_directory_alone_does_not_choose_who_runs_the_jobs(command, place, word):
    record(place, words=["-m", "seed=1,2", word])
    message = command.refused("resume", str(place))
    assert f"was started with {word}, which is not taken from a folder" in message
    _, _, err = command("resume", str(place), word, "--dry-run")
    assert "others may have written" not in err  # the same word, given by the user


@pytest.mark.parametrize(
    "word",
    [
        "name=${oc.env:BANK_PASSWORD}",
        "name=${${oc.env:A}:B}",
        "dataset.token_env=BANK_PASSWORD",
        "checkpoint={mirror: s3://theirs/runs/x}",
        "delivery.to=elsewhere",
    ],
)
def test_a_sent_sweep_reads_and_writes_only_what_the_command_line_names(
    command, place, word, monkeypatch
):
    monkeypatch.setenv("BANK_PASSWORD", "hunter2-of-the-bank")
    record(place, words=["-m", "seed=1,2", word])
    message = command.refused("resume", str(place))
    assert "which is not taken from a folder that others may have written" in message
    record(place, **command_facts(["-m", "seed=1,2", word], os.getcwd()))
    _, _, err = command("resume", str(place), "--dry-run")
    assert "others may have written" not in err  # it is one's own


def test_a_sent_sweep_runs_no_code_of_the_folders_that_it_names(command, place, tmp_path):
    (tmp_path / "theirs").mkdir()
    record(place, cwd=str(tmp_path / "theirs"))
    assert "does not choose where jobs run" in command.refused("resume", str(place))
    record(place, words=["--config-dir", str(tmp_path / "theirs"), "-m", "seed=1,2"])
    message = command.refused("resume", str(place))
    assert "was started with --config-dir" in message
    own = ["resume", str(place), "--config-dir", str(tmp_path / "theirs"), "--dry-run"]
    assert command(*own)[0] == 0


def test_a_launchers_setting_builds_no_part():
    with pytest.raises(ConfigError, match="_target_ is not allowed here"):
        parse_launcher(["hydra/launcher=ray", "+hydra.launcher.x={_target_: os.system}"])


@pytest.mark.long
@pytest.mark.parametrize(
    "word",
    [
        "task._target_=runner.remote.train_on_cluster",
        "+callbacks.x._target_=runner.distributed.parent_death.become_job",
        "dataset._target_=runner.data.core.dataset.FileOrderDataset",
        "task._target_=os.system",
        "+task._args_=[1]",
        "+model.net._partial_=true",
    ],
)
def test_what_the_words_of_a_sweep_name_is_judged_before_any_job_begins(runner, place, word):
    record(place, words=["-m", "seed=1,2", word])
    done = runner.run("resume", str(place)).check(2)
    assert (
        "not a part" in done.text or "_target_=os.system" in done.text or "no such key" in done.text
    )
    assert not [p for p in place.iterdir() if p.is_dir()]


@pytest.mark.parametrize("folder", ["../outside", "/tmp/outside", "..", "", "a/b"])
def test_a_job_has_its_folder_in_the_sweep(place, folder):
    assert run(place, grid(value=[0.1])) == 0
    (place.parent / "outside").mkdir()
    for old in place.glob("value*"):
        old.rename(place.parent / "gone")
    change(place, f"UPDATE runner_jobs SET folder='{folder}'")
    with pytest.raises(UserError, match=r"study.db: damaged: .* is no folder of the sweep"):
        run(place, grid(value=[0.1]))
    assert not list((place.parent / "outside").iterdir())


def test_a_link_in_place_of_a_jobs_folder_is_not_followed(place):
    assert run(place, grid(value=[0.1])) == 0
    [folder] = [p for p in place.iterdir() if p.is_dir()]
    outside = place.parent / "outside"
    folder.rename(outside)
    before = {p.name: p.read_bytes() for p in outside.iterdir()}
    folder.symlink_to(outside)
    assert run(place, grid(value=[0.1])) == 0
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == before
    assert len([p for p in place.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_leaderboard_is_read_only_if_it_is_a_file(command, place, kind):
    assert run(place, grid(value=[0.1])) == 0
    (place / "leaderboard.csv").unlink()
    outside = plant(kind, place / "leaderboard.csv")
    code, _, err = command("report", str(place), "--html", str(place.parent / "page.html"))
    assert code == 0, err
    assert "Traceback" not in err
    assert outside.read_text() == '{"signature": "x"}\n'


@pytest.mark.parametrize(
    "changed",
    [{"metrics": [1]}, {"best": 7}, {"best": {"step": "x"}}, {"status": {}}, {"error": []}],
)
def test_a_result_of_another_form_counts_as_none(place, changed):
    assert run(place, grid(value=[0.1])) == 0
    [file] = place.glob("*/result.json")
    result = json.loads(file.read_text())
    assert read_result_if_whole(file.parent) == result
    file.write_text(json.dumps({**result, **changed}))
    assert read_result_if_whole(file.parent) is None
    assert run(place, grid(value=[0.1])) in (0, 1)  # as its job says, which finds it again


@pytest.mark.parametrize("kind", KINDS)
def test_a_jobs_log_is_a_file(place, kind, capsys):
    record(place)
    assert run(place, grid(value=[0.1])) == 0
    [folder] = [p for p in place.iterdir() if p.is_dir()]
    for file in folder.iterdir():
        file.unlink()
    outside = plant(kind, folder / "job.log")
    assert run(place, grid(value=[0.1])) in (0, 1)
    assert outside.read_text() == '{"signature": "x"}\n'
    assert os.path.lexists(folder / "job.log")
