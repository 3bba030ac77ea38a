"""`clean`: what it deletes, what it never deletes, and that it only lists without `--yes`."""

from __future__ import annotations

import json
import os
import time

import pytest

from runner.rundir.lock import FolderLock
from tests.reporting.report.run_directories import forbid_reading, make_run


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "outputs" / "made"


def checkpoint(run, step=20):
    folder = run / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return run


def test_clean_only_lists_runs_without_yes(command, runs):
    make_run(runs / "good")
    make_run(runs / "bad", status="failed", error="x")
    code, out, _ = command("clean")
    assert code == 0
    assert "made/bad" in out
    assert "made/good" not in out
    assert "nothing was deleted" in out
    assert (runs / "bad").exists()
    code, out, _ = command("clean", "--yes")
    assert code == 0
    assert "deleted 1 of 1 runs" in out
    assert sorted(p.name for p in runs.iterdir()) == ["good"]


def test_runs_that_can_be_resumed_are_deleted_only_with_interrupted(command, runs):
    checkpoint(make_run(runs / "killed", status=None))
    checkpoint(make_run(runs / "stopped", status="interrupted"))
    make_run(runs / "empty", status=None)
    out = command("clean")[1]
    assert "empty" in out
    assert "killed" not in out
    assert "stopped" not in out
    out = command("clean", "--interrupted")[1]
    assert "could be resumed at step 20" in out
    assert "stopped" in out


def test_a_run_in_use_and_one_that_another_builds_on_stay(command, runs):
    used = make_run(runs / "used", status=None)
    source = make_run(runs / "source", status="failed")
    make_run(runs / "eval", kind="eval", source={"path": str(source)})
    warm = make_run(runs / "weights", status="failed")
    path = str(checkpoint(warm) / "checkpoints" / "step-20")
    make_run(runs / "warm", identity={"checkpoint.init_from": path})
    tables = make_run(runs / "tables", status="failed")
    make_run(runs / "lent", identity={"checkpoint.init_tables.user.from": str(tables)})
    for name, quote in (("learnt", ""), ("learnt's", '"')):
        data = make_run(runs / name, status="failed") / "data"
        learner = make_run(runs / f"of {name}")
        (learner / "config.yaml").write_text(f"dataset:\n  learnt: {quote}{data}{quote}\n")
    lock = FolderLock(used)
    try:
        code, out, _ = command("clean", "--yes")
    finally:
        lock.release()
    assert code == 0
    assert "source: eval builds on it" in out
    assert "weights: warm builds on it" in out
    assert "tables: lent builds on it" in out
    assert "learnt: of learnt builds on it" in out
    assert "learnt's: of learnt's builds on it" in out
    assert {"used", "source", "weights", "tables"} <= {p.name for p in runs.iterdir()}


def test_a_sweep_is_left_alone(command, tmp_path):
    sweep = tmp_path / "outputs" / "sweeps" / "s"
    make_run(sweep / "job", status="failed")
    (sweep / "study.db").touch()
    assert "0 of 0 runs" in command("clean", "--yes")[1]
    assert (sweep / "job").exists()


def test_old_runs_are_deleted_by_their_age_whatever_their_status(command, runs):
    old = make_run(runs / "old")
    make_run(runs / "new")
    before = time.time() - 8 * 86400
    for path in [*old.iterdir(), old]:
        os.utime(path, (before, before))
    assert "completed, old" in command("clean", "--older-than", "7d", "--yes")[1]
    assert not old.exists()
    assert (runs / "new").exists()


def test_of_a_chain_of_warm_starts_or_transforms_old_runs_are_deleted_and_newer_ones_have_their_own(
    command, runs
):
    days = [checkpoint(make_run(runs / "day-0"))]
    for n in range(1, 4):
        identity = {"checkpoint.init_from": str(days[-1])} if n != 1 else {}
        days.append(make_run(runs / f"day-{n}", identity=identity))
        (days[-1] / "config.yaml").write_text(f"dataset:\n  learnt: {days[-2] / 'data'}\n")
        (days[-1] / "data").mkdir()
        (days[-1] / "data" / "learnt.json").touch()
        if n != 2:
            checkpoint(days[-1])
    before = time.time() - 8 * 86400
    for day in days[:2]:
        for path in [*day.iterdir(), day]:
            os.utime(path, (before, before))
    assert "day-0" not in command("clean", "--yes")[1]
    out = command("clean", "--older-than", "7d", "--yes")[1]
    assert "day-1: day-2 builds on it" in out, "day-2 has no checkpoint of its own"
    assert sorted(p.name for p in runs.iterdir()) == ["day-1", "day-2", "day-3"]


def test_links_are_not_followed_and_other_folders_not_touched(command, runs, tmp_path):
    elsewhere = make_run(tmp_path / "elsewhere", status="failed")
    bad = make_run(runs / "bad", status="failed")
    (bad / "link").symlink_to(elsewhere)
    (runs / "also").symlink_to(elsewhere)
    mine = runs / "notes"
    mine.mkdir()
    (mine / "plan.txt").write_text("keep")
    command("clean", "--yes")
    assert not bad.exists()
    assert (elsewhere / "meta.json").exists()
    assert (mine / "plan.txt").exists()


def test_latest_names_the_newest_run_that_is_left(command, runs, tmp_path):
    make_run(runs / "first", created="2026-01-01T00:00:00+0000")
    make_run(runs / "second", created="2026-01-02T00:00:00+0000")
    make_run(runs / "third", created="2026-01-03T00:00:00+0000", status="failed")
    latest = tmp_path / "outputs" / "latest"
    latest.symlink_to("made/third")
    command("clean", "--yes")
    assert os.readlink(latest) == "made/second"


def test_a_run_killed_at_its_start_and_a_half_deleted_one_are_deleted(command, runs):
    early = runs / "early"
    early.mkdir(parents=True)
    (early / ".lock").touch()
    (early / "config.yaml").touch()
    make_run(runs / ".deleting-x")
    (runs / ".deleting-x" / "meta.json").unlink()
    out = command("clean", "--yes")[1]
    assert "ended before it had begun" in out
    assert "deleted 2 of 2" in out
    assert not list(runs.parent.glob("made/*"))


def test_a_folder_that_became_empty_is_deleted_too(command, runs):
    make_run(runs / "bad", status="failed")
    command("clean", "--yes")
    assert not runs.exists()
    assert runs.parent.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clean", "nowhere"], "no such folder"),
        (["clean", ".", "--older-than", "soon"], "an age such as 30min"),
        (["clean", ".", "--yess"], "nearest: '--yes'"),
    ],
)
def test_mistakes_are_reported(command, words, message):
    assert message in command.refused(*words)


def test_a_folder_of_somebody_else_is_told_and_the_others_are_cleaned(command, runs, monkeypatch):
    make_run(runs / "bad", status="failed")
    forbid_reading(monkeypatch, runs / "locked")
    code, out, _ = command("clean", "--yes")
    assert code == 0
    assert "locked: cannot be read: Permission denied" in out
    assert "deleted 1 of 1" in out


def test_a_damaged_run_is_left_for_a_person_to_judge(command, runs):
    run = checkpoint(make_run(runs / "x", status="failed"))
    (run / "meta.json").write_text(json.dumps({"kind": "train"}))
    command("clean", "--yes")
    assert run.exists()
