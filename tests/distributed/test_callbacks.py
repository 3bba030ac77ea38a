"""Every shipped callback, and one of a user's at every event, on two ranks.

The check of collectives is on (tests/conftest.py), so that a rank that waits for another fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, Finished, Zygote
from tests.tiers import fast
from tests.whole.compare_runs import newest_checkpoint, read_result

SHIPPED = sorted(path.stem for path in (ROOT / "conf" / "callbacks").glob("*.yaml"))
EVENTS = ("on_run_start", "on_update", "on_epoch", "on_evaluation", "on_checkpoint", "on_run_end")
SETTINGS = (
    *("--allow", "tests"),
    *TINY,
    "dataset.rows={train: 480, validation: 100, test: 100}",  # 15 updates in an epoch
    "trainer.max_steps=18",
    "trainer.batch_size=16",
    "trainer.eval_every=15",
    "checkpoint.save_every=15",
    "trainer.num_processes=2",
    "trainer.rank_timeout_s=20",
)


def train(runner: Zygote, run: Path, *more: str) -> Finished:
    return runner.run(*SETTINGS, *more, f"hydra.run.dir={run}")


@pytest.mark.long
@pytest.mark.parametrize("name", fast(*SHIPPED[::4], of=SHIPPED))
def test_a_shipped_callback_runs_on_two_ranks(runner, tmp_path, name):
    every = {"activations", "memory", "throughput", "weights"} & {name}
    train(runner, tmp_path, f"callbacks={name}", *(f"callbacks.{n}.every=4" for n in every)).check()
    assert read_result(tmp_path)["step"] == 18


@pytest.mark.long
def test_a_time_limit_pauses_both_ranks(runner, tmp_path):
    words = ("callbacks=time_limit", "callbacks.time_limit.limit=2s")
    sleeper = "{_target_: tests.training.callbacks.user_callbacks.Sleeper, seconds: 0.3}"
    slow = ("callbacks.time_limit.margin=1s", f"+callbacks.sleeper={sleeper}")
    train(runner, tmp_path, *words, *slow).check(143)
    assert 0 < read_result(tmp_path)["step"] < 18


@pytest.mark.long
def test_a_guard_that_sees_a_nan_stops_both_ranks(runner, tmp_path):
    words = ("callbacks=loss_guard", "optimizer=sgd", "optimizer.dense.lr=1e30")
    assert "Timed out" not in train(runner, tmp_path, *words, "optimizer.sparse.lr=1e30").text
    assert (read_result(tmp_path)["step"], read_result(tmp_path)["stopped"]) == (
        2,
        "loss_guard: the loss is nan",
    )


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("event", fast(*EVENTS[::4], of=EVENTS))
@pytest.mark.parametrize("what", ["raise", "stop", pytest.param("pause", marks=pytest.mark.slow)])
def test_what_one_rank_asks_at_an_event_ends_both(runner, tmp_path, what, event, rank):
    step = {"on_run_start": 0, "on_run_end": 18}.get(event, 15)
    keys = f"step: {step}, what: {what}, event: {event}, rank: {rank}"
    target = "tests.training.callbacks.user_callbacks.Asker"
    done = train(runner, tmp_path, f"+callbacks.asker={{_target_: {target}, {keys}}}")
    ended = read_result(tmp_path)
    if what == "raise":
        assert done.code == 1, done.text
        told = f"callbacks.asker (Asker) at {event}, step {step}: raised ValueError: out of ideas"
        assert told in ended["error"]
        if step:
            assert newest_checkpoint(tmp_path).name == f"step-{step}"
        return
    is_paused = what == "pause" and event != "on_run_end"  # then it has ended already
    assert done.code == (143 if is_paused else 0), done.text
    assert ended["status"] == ("interrupted" if is_paused else "completed")
    # what is asked while the state is being saved is heard after the next update
    late = what == "stop" and event == "on_checkpoint"
    assert ended["step"] == step + late
    if what == "stop":
        assert (ended.get("stopped") == "it is enough") == (event != "on_run_end")
