"""Early stopping, plateaus and callbacks on two ranks decide as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.rundir.checkpoint import open_checkpoint
from tests.conftest import TINY, Zygote
from tests.distributed.traced import examples
from tests.whole.compare_runs import differences, newest_checkpoint, read_result, read_rows

ALLOW = ("--allow", "tests")
SETTINGS = (
    *TINY,
    "dataset.rows={train: 3011, validation: 501, test: 500}",
    "trainer.max_steps=null",
    "trainer.max_epochs=2",
    "trainer.rank_timeout_s=60",
    "trainer.log_every=1",
    "trainer.eval_every=2",
    "checkpoint.save_every=2",
    # calibration falls from 2 to 1: the first one, at update 2, stays the largest
    "checkpoint.monitor={metric: validation/calibration, direction: max}",
    "trainer.early_stop.patience=5",
    "trainer.lr_on_plateau.patience=2",
    "trainer.batch_on_plateau.patience=2",
    "trainer.batch_on_plateau.max_rows=360",
    "callbacks=weights",
    "callbacks.weights.every=3",
    "callbacks.weights.sample_rows=50",
)
ONE = ("trainer.batch_size=120",)
TWO = ("trainer.batch_size=30", "trainer.accumulate=2", "trainer.num_processes=2")
TWO = (*TWO, "sharding=row_wise")


def train(runner: Zygote, folder: Path, *more: str, **env: str):
    task = "task._target_=tests.distributed.traced.Traced"
    words = (*ALLOW, task, *SETTINGS, *more, f"hydra.run.dir={folder}")
    return runner.run(*words, env={"TRACE_FILE": f"{folder}.trace", **env})


@pytest.fixture(scope="module")
def together(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together") / "run"
    train(runner, folder, *TWO).check()
    return folder


@pytest.mark.slow
def test_two_ranks_decide_and_measure_what_one_process_does(runner, together, tmp_path):
    alone = tmp_path / "alone"
    train(runner, alone, *ONE).check()
    assert read_result(together)["step"] == read_result(alone)["step"] == 12
    # 6 updates of 120 rows, 4 of 240, 2 of 360
    assert read_result(together)["examples"] == 6 * 120 + 4 * 240 + 2 * 360
    ours, theirs = read_rows(together), read_rows(alone)
    assert [(r["split"], r["step"]) for r in ours] == [(r["split"], r["step"]) for r in theirs]
    assert sum(row["split"] == "weights" for row in ours) == 4
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys()
        for name in a.keys() - {"split"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), (a["step"], name)
    trace = examples(Path(f"{together}.trace"), 2)
    assert trace == examples(Path(f"{alone}.trace"), 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "kill", ["1:8", *(pytest.param(f"0:{k}", marks=pytest.mark.slow) for k in (5, 6, 7, 11, 12))]
)
def test_a_rank_killed_around_a_decision_and_resumed_decides_the_same(
    runner, together, tmp_path, kill
):
    run = tmp_path / "run"
    train(runner, run, *TWO, TRACE_KILL=kill).check(1)
    train(runner, run, *TWO).check()
    assert differences(run, together) == []
    assert examples(Path(f"{run}.trace"), 2) == examples(Path(f"{together}.trace"), 2)


def asker(**settings: object) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"+callbacks.asker={{_target_: tests.training.callbacks.user_callbacks.Asker, {keys}}}"


@pytest.mark.long
def test_a_stop_that_one_rank_requests_stops_all(runner, tmp_path):
    run = tmp_path / "run"
    train(runner, run, *TWO, asker(step=3, what="stop", rank=1)).check()
    assert (read_result(run)["step"], read_result(run)["status"]) == (3, "completed")
    assert read_result(run)["stopped"] == "it is enough"


@pytest.mark.long
def test_a_callback_that_raises_on_one_rank_ends_all_with_the_training_saved(runner, tmp_path):
    run = tmp_path / "run"
    done = train(runner, run, *TWO, asker(step=3, what="raise", rank=1)).check(1)
    assert "callbacks.asker (Asker) at on_update, step 3: raised ValueError" in done.text
    assert read_result(run)["status"] == "failed"
    assert open_checkpoint(newest_checkpoint(run)).step == 3
