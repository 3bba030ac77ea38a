"""Whole sweeps of stand-in jobs: real processes, but none of the runner's trainings."""

import csv
import json
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.rundir.lock import FolderLock
from tests.sweep.driver import grid, run


def board(directory: Path) -> list[dict[str, str]]:
    with (directory / "leaderboard.csv").open() as file:
        return list(csv.DictReader(file))


def statuses(directory: Path, key: str = "do") -> dict[str, str]:
    return {row[key]: row["status"] for row in board(directory)}


def starts(directory: Path) -> dict[str, int]:
    """Return how often each job's process was started."""
    return {p.parent.name: len(p.read_text().split()) for p in directory.glob("*/starts")}


def test_every_job_runs_once_and_the_best_comes_first(tmp_path, capsys):
    jobs = grid(value=[0.3, 0.9, 0.6], seed=[1, 2])
    assert run(tmp_path / "s", jobs) == 0
    rows = board(tmp_path / "s")
    assert [row["value"] for row in rows] == ["0.9", "0.9", "0.6", "0.6", "0.3", "0.3"]
    assert [float(row["validation/auc"]) for row in rows] == [0.9, 0.9, 0.6, 0.6, 0.3, 0.3]
    assert rows[0]["seed"] == "1"
    assert float(rows[0]["test/auc"]) == pytest.approx(0.89)
    assert rows[0]["test/loss"] == "nan"
    assert list(starts(tmp_path / "s").values()) == [1] * 6
    out = capsys.readouterr().out
    assert "[6/6] completed" in out
    assert "over seeds" in out
    assert "0.90000 ± 0" in out


def test_a_metric_to_be_small_is_sorted_the_other_way(tmp_path):
    assert run(tmp_path, grid(value=[0.3, 0.9, 0.1]), direction="min") == 0
    assert [row["value"] for row in board(tmp_path)] == ["0.1", "0.3", "0.9"]


def test_a_job_that_fails_leaves_the_others_alone(tmp_path, capsys):
    what = ["raise", "ok", "wrong", "sigkill", "memory", "silent"]
    assert run(tmp_path, grid(do=what), slots=2) == 1
    errors = {row["do"]: row["error"] for row in board(tmp_path)}
    assert errors == {
        "ok": "",
        "raise": "at step 3 of 'top.0'",
        "wrong": "the data has no column 'label'",
        "sigkill": "killed by signal 9",
        "memory": "MemoryError",
        "silent": "exit code 7, and nothing in job.log",
    }
    assert statuses(tmp_path) == {w: "completed" if w == "ok" else "failed" for w in what}
    output = capsys.readouterr()
    assert "failed: do=raise: at step 3 of 'top.0'" in output.err
    assert "1 completed, 5 failed" in output.out


def test_done_jobs_are_not_repeated_and_a_grown_grid_runs_only_its_new_jobs(tmp_path, capsys):
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")}
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    assert "2 done already" in capsys.readouterr().out
    assert run(tmp_path, grid(value=[0.1, 0.3, 0.2])) == 0
    assert sorted(starts(tmp_path).values()) == [1, 1, 1]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert [row["value"] for row in board(tmp_path)] == ["0.3", "0.2", "0.1"]


def test_a_job_is_identified_by_its_meta_json_whatever_the_name_of_its_folder(tmp_path):
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    for number, folder in enumerate(sorted(p.parent for p in tmp_path.glob("*/meta.json"))):
        folder.rename(tmp_path / f"renamed-{number}")
    (tmp_path / "study.db").unlink()
    assert run(tmp_path, grid(value=[0.1, 0.2])) == 0
    assert starts(tmp_path) == {"renamed-0": 1, "renamed-1": 1}


def test_an_unfinished_job_goes_on_in_its_own_folder(tmp_path):
    assert run(tmp_path, grid(do="sigkill_once", steps=3)) == 1
    assert run(tmp_path, grid(do="sigkill_once", steps=3)) == 0
    (folder,) = tmp_path.glob("*/")
    assert (folder / "steps").read_text().split() == ["1", "2", "3"]
    assert starts(tmp_path) == {folder.name: 2}
    rows = sqlite3.connect(tmp_path / "study.db").execute(
        "SELECT status, error FROM runner_tries ORDER BY id"
    )
    assert list(rows) == [("failed", "killed by signal 9"), ("completed", None)]


def test_a_run_that_exits_with_0_but_without_a_result_has_failed(tmp_path):
    assert run(tmp_path, grid(do=["lost", "debug"])) == 1
    errors = {row["do"]: row["error"] for row in board(tmp_path)}
    assert errors == {"lost": "it ended with exit code 0, but without a result", "debug": ""}


def test_a_failed_job_is_tried_again_as_often_as_configured(tmp_path, capsys):
    assert run(tmp_path, grid(do=["sigkill_once", "raise", "wrong"]), retries=2) == 1
    assert statuses(tmp_path) == {"sigkill_once": "completed", "raise": "failed", "wrong": "failed"}
    by_job = {name.split("_")[0] + name.split("_")[1]: n for name, n in starts(tmp_path).items()}
    assert by_job["do-sigkillonce"] == 2
    counts = sorted(starts(tmp_path).values())
    assert counts == [1, 2, 3]  # wrong: what is wrong stays wrong; raise: two more tries
    assert "tries left: 2" in capsys.readouterr().out


def test_a_job_over_its_time_is_asked_to_save_and_counts_as_failed(tmp_path):
    started = time.monotonic()
    assert run(tmp_path, grid(steps=[1, 1000], step_s=0.02), timeout_s=0.5) == 1
    assert time.monotonic() - started < 10
    errors = {row["steps"]: row["error"] for row in board(tmp_path)}
    assert errors == {"1": "", "1000": "stopped after 0.5 s (launcher.timeout_s)"}
    assert 3 < int({row["steps"]: row["step"] for row in board(tmp_path)}["1000"]) < 100


@pytest.mark.long
def test_slots_run_side_by_side_and_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.sweep.driver.usable_cores", lambda: 8)
    started = time.monotonic()
    assert run(tmp_path, grid(value=[0.1, 0.2, 0.3, 0.4], steps=1, step_s=1), slots=4) == 0
    assert time.monotonic() - started < 3
    logs = [p.read_text() for p in tmp_path.glob("*/job.log")]
    assert logs == [f"threads 2 sweep {tmp_path.name}\n"] * 4


def test_a_dry_run_says_what_is_done_and_touches_nothing(tmp_path, capsys):
    place = tmp_path / "s"
    assert run(place, grid(value=[0.1, 0.2]), dry_run=True) == 0
    assert not place.exists()
    assert "2 jobs: 2 new" in capsys.readouterr().out
    assert run(place, grid(value=[0.1])) == 0
    before = {p: p.stat().st_mtime_ns for p in place.rglob("*")}
    capsys.readouterr()
    assert run(place, grid(value=[0.1, 0.2]), dry_run=True) == 0
    out = capsys.readouterr().out
    assert "2 jobs: 1 done, 1 new" in out
    assert "new         value=0.2" in out
    assert {p: p.stat().st_mtime_ns for p in place.rglob("*")} == before


def test_a_second_sweep_in_the_same_directory_is_refused(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(UserError, match=r"another sweep is running here: process \d+ on"):
        run(tmp_path, grid(value=[0.1]))
    lock.release()
    assert run(tmp_path, grid(value=[0.1])) == 0


def test_a_run_directory_is_refused_as_the_directory_of_a_sweep(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(UserError, match="a run directory"):
        run(tmp_path, grid(value=[0.1]))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the sweep's directory"):
        run(tmp_path / "file", grid(value=[0.1]))


def test_a_sweep_that_cannot_be_written_any_more_goes_on_as_a_copy(tmp_path):
    assert run(tmp_path, grid(value=[0.1])) == 0
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match="a copy of the folder elsewhere can be resumed"):
        run(tmp_path, grid(value=[0.1]))


def test_the_folder_of_another_run_is_not_taken(tmp_path, capsys):
    assert run(tmp_path, grid(value=[0.1])) == 0
    (folder,) = (p.parent for p in tmp_path.glob("*/result.json"))
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"signature": "00000000"}))
    assert run(tmp_path, grid(value=[0.1])) == 0
    assert starts(tmp_path) == {folder.name: 1, f"{folder.name}_2": 1}
    assert "1 run with other values" in capsys.readouterr().out


def test_a_damaged_meta_json_is_reported_and_its_job_runs_in_another_folder(tmp_path, capsys):
    assert run(tmp_path, grid(value=[0.1])) == 0
    (folder,) = (p.parent for p in tmp_path.glob("*/result.json"))
    (folder / "meta.json").write_text('{"signature": "0000')
    assert run(tmp_path, grid(value=[0.1])) == 0
    assert starts(tmp_path) == {folder.name: 1, f"{folder.name}_2": 1}
    assert "meta.json: cannot be read" in capsys.readouterr().err


def test_jobs_that_share_a_signature_each_run_in_a_folder_of_their_own(tmp_path):
    jobs = grid(value=0.5, tracker=["none", "wandb"])
    assert run(tmp_path, jobs) == 0
    assert len(starts(tmp_path)) == 2
    (tmp_path / "study.db").unlink()
    assert run(tmp_path, jobs) == 0
    assert list(starts(tmp_path).values()) == [1, 1]


def test_no_torch_in_the_sweeps_own_process(tmp_path):
    import subprocess

    request = {"grid": {"value": [0.1, 0.2]}, "directory": str(tmp_path / "s")}
    command = [sys.executable, "-m", "tests.sweep.driver", json.dumps(request)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
