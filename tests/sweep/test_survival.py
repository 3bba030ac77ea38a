"""A sweep that is killed twice, and whose jobs raise, are killed and run out of memory.

Its twelve trainings, two at a time, end with the same results as those of an undisturbed sweep.
"""

import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial

import pytest

from tests.conftest import ROOT
from tests.sweep.forked import begin
from tests.sweep.test_killed import until
from tests.sweep.test_sweep import board

PATIENCE_S = 900  # jobs are interpreters of their own, which import torch: long on a busy machine
HARM = {1: "ArithmeticError", 5: "killed by signal 9", 6: "out of memory"}


def words(tmp_path, place, *more):
    conf = tmp_path / "conf" / "model"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "harmful.yaml").write_text(
        "net: {_target_: tests.sweep.harm.Harmful, level: 0.0}\n"
        "loss: {_target_: runner.models.losses.BCE}\n"
    )
    return [
        *("--config-dir", str(conf.parent), "--allow", "tests"),
        *("model=harmful", "launcher.slots=2", *more),
        "dataset.rows={train: 3000, validation: 500, test: 500}",
        "dataset.max_cardinality=200",
        *("trainer.num_threads=1", "trainer.batch_size=50", "trainer.eval_every=20"),
        *("trainer.max_steps=40", "checkpoint.save_every=2"),
        f"hydra.sweep.dir={tmp_path / place}",
    ]


GRID = ("-m", "model.net.level=0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,10.0,11.0")
SEARCH = (
    "search=quasi_random",
    "search.num_trials=12",
    "search.seed=28",  # of which each harm is drawn once
    "optimizer.sparse.lr=0.02",
    "model.net.level=interval(0.0,16.0)",
)


def outcomes(directory):
    """Return what must not depend on the kills, for each job."""
    found = {}
    for row in board(directory):
        level = float(row["model.net.level"])
        numbers = [row["validation/auc"], row["test/auc"], row["step"]]
        if row["status"] != "completed":
            numbers = []  # a checkpoint may have been evaluated before the harm, or not
        found[level] = (row["status"], *numbers, row["error"], row["signature"])
    return found


class Fresh:
    """Run a new interpreter: a search has threads (scipy's) that must not be forked."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "runner", *words]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        self.kill, self.wait = self.process.kill, self.process.wait


def ended_jobs(directory, count: int) -> bool:
    return len(list(directory.glob("*/result.json"))) >= count


def survive(start, tmp_path, what) -> dict[float, tuple]:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    moment = random.Random(seed)
    command = words(tmp_path, "s", *what)
    for ended in (2, 6):
        process = start(*command)
        until(partial(ended_jobs, tmp_path / "s", ended), PATIENCE_S)
        time.sleep(moment.uniform(0, 0.5))
        process.kill()
        process.wait()
    assert start(*command).wait() == 1
    assert start(*words(tmp_path, "q", *what)).wait() == 1
    found = outcomes(tmp_path / "s")
    assert len(found) == 12
    assert found == outcomes(tmp_path / "q")
    for level, (status, *_, error, _) in found.items():
        assert status == ("failed" if int(level) in HARM else "completed")
        assert HARM.get(int(level), "") in error
    assert {int(level) for level in found} >= set(HARM)
    for folder in (tmp_path / "s").glob("*/result.json"):
        assert json.loads(folder.read_text())["status"] in ("completed", "failed")
    with closing(sqlite3.connect(tmp_path / "s" / "study.db")) as study:
        once = "SELECT count(*), count(DISTINCT job) FROM runner_tries WHERE status = 'completed'"
        assert study.execute(once).fetchone() == (9, 9)
        assert study.execute(
            "SELECT count(*) FROM runner_tries WHERE ended IS NULL"
        ).fetchone() == (0,)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", [GRID, SEARCH], ids=["grid", "quasi-random"])
@pytest.mark.parity("N3")
def test_a_sweep_survives_its_jobs_and_its_own_death(runner, tmp_path, what):
    start = partial(begin, runner) if what is GRID else Fresh
    found = survive(start, tmp_path, what)
    assert sorted(status for status, *_ in found.values()) == ["completed"] * 9 + ["failed"] * 3
