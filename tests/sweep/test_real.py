"""`python -m runner -m ...` itself, on a tiny data set."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, python

TINY = (
    "dataset.rows={train: 3000, validation: 500, test: 500}",
    "trainer.batch_size=100",
    "trainer.max_steps=20",
    "trainer.num_threads=1",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
)


def test_the_parent_imports_no_torch(tmp_path):
    code = (
        "import sys; from runner.__main__ import main; import runner.sweep.run\n"
        "code = main(sys.argv[1:])\n"
        "bad = {'torch', 'torchrec', 'pyarrow.parquet', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if {'torch', 'torchrec'} & bad else code)"
    )
    words = ["-m", "--dry-run", "seed=1,2", *TINY, f"hydra.sweep.dir={tmp_path / 's'}"]
    done = python("-c", code, *words)
    assert done.returncode == 0, done.stderr
    assert "2 jobs: 2 new" in done.stdout
    assert not (tmp_path / "s").exists()


@pytest.mark.long
def test_a_wrong_job_is_named_and_nothing_starts(tmp_path):
    place = tmp_path / "s"
    done = python(
        "-m", "runner", "-m", "optimizer=adam,adma", "seed=1,2", *TINY, f"hydra.sweep.dir={place}"
    )
    assert done.returncode == 2
    assert "job 3 of 4 (optimizer=adma seed=1) and 1 more" in done.stderr
    assert "'adam'" in done.stderr
    assert not place.exists()


@pytest.mark.slow
def test_a_two_by_two_multirun_leaves_its_leaderboard(tmp_path):
    place = tmp_path / "a sweep"
    words = ["-m", "optimizer=adam,rowwise_adagrad", "seed=1,2", *TINY]
    words += [f"hydra.sweep.dir='{place}'", "launcher.slots=2"]
    done = python("-m", "runner", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    with (place / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted((r["optimizer"], r["seed"]) for r in rows) == [
        (o, s) for o in ("adam", "rowwise_adagrad") for s in ("1", "2")
    ]
    assert {r["status"] for r in rows} == {"completed"}
    assert {r["step"] for r in rows} == {"20"}
    values = [float(r["validation/auc"]) for r in rows]
    assert values == sorted(values, reverse=True)
    for row in rows:
        result = json.loads((place / row["folder"] / "result.json").read_text())
        assert float(row["validation/auc"]) == result["best"]["value"]
        assert float(row["test/auc"]) == result["metrics"]["test/auc"]
    before = {p: p.stat().st_mtime_ns for p in place.glob("*/*")}
    started = time.monotonic()
    again = python("-m", "runner", *words)
    assert time.monotonic() - started < 10
    assert again.returncode == 0
    assert "4 done already" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in place.glob("*/*")} == before


@pytest.mark.slow
def test_a_real_sweep_that_is_killed_goes_on_and_ends_as_a_quiet_one(tmp_path):
    def words(place: Path) -> list[str]:
        return ["-m", "seed=1,2", *TINY[:-5], *TINY[-4:], "checkpoint.save_every=3"] + [
            "trainer.max_steps=120",
            "trainer.batch_size=20",
            f"hydra.sweep.dir={place}",
        ]

    command = [sys.executable, "-m", "runner", *words(tmp_path / "s")]
    sweep = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "s").glob("*/checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(sweep.pid, 9)
    sweep.wait()
    done = python("-m", "runner", *words(tmp_path / "s"))
    assert done.returncode == 0, done.stdout + done.stderr
    quiet = python("-m", "runner", *words(tmp_path / "q"))
    assert quiet.returncode == 0, quiet.stdout + quiet.stderr
    assert numbers(tmp_path / "s") == numbers(tmp_path / "q")


def numbers(place: Path) -> list[tuple[str, str]]:
    """Return result and metrics log of every job, to the last bit."""
    found = []
    for folder in sorted(p.parent for p in place.glob("*/result.json")):
        result = json.loads((folder / "result.json").read_text())
        found.append((str(result["metrics"]), (folder / "metrics.jsonl").read_text()))
    return found
