"""Stopping poor jobs early, on real trainings of the synthetic set."""

import json
import signal
import time
from types import SimpleNamespace

import pytest

from runner.rundir.json_files import read_json, write_json
from runner.rundir.run_files import ANSWER_FILE, REQUEST_FILE
from runner.sweep.pruning import pruning_responder
from tests.sweep.forked import sweep
from tests.sweep.test_sweep import board

SMALL = (
    "dataset.rows={train: 24000, validation: 3000, test: 1000}",
    "dataset.max_cardinality=300",
    "trainer.num_threads=1",
    "trainer.batch_size=128",
    "trainer.log_every=100",
    "checkpoint.save_every=null",
    "model.net.bottom=[16]",
    "model.net.top=[16]",
    "model.net.embedding_dim=4",
    # what the default spaces search beside the two rates
    "optimizer.sparse.l2_lookups=0",
    "model.net.embedding_dropout=0",
    "model.net.dropout=0",
    "model.net.norm=null",
)
SPACE = (
    "optimizer.sparse.lr=tag(log,interval(1e-4,1e-1))",
    "optimizer.dense.lr=tag(log,interval(1e-5,1e-1))",
)


def updates(directory) -> int:
    return sum(int(row["step"]) for row in board(directory))


def both(runner, tmp_path, *words):
    """Run the same search without and with ASHA, and return both directories."""
    for pruner in ("none", "asha"):
        place = f"hydra.sweep.dir={tmp_path / pruner}"
        sweep(runner, *words, *SMALL, *SPACE, f"search.pruner={pruner}", place).check()
    return tmp_path / "none", tmp_path / "asha"


def test_a_pruner_sees_the_evaluations_and_no_rows_of_callbacks(tmp_path):
    reported = []
    search = SimpleNamespace(
        spec=SimpleNamespace(settings=SimpleNamespace(pruner="median")),
        plan=SimpleNamespace(metric="validation/auc"),
        trial_numbers={"job": [3]},
        trials=SimpleNamespace(report=lambda *args: bool(reported.append(args))),
    )
    answer = pruning_responder(search)
    running = SimpleNamespace(folder=tmp_path, try_id=1, job=SimpleNamespace(key="job"))
    for step, value in ((5, 0.6), (10, 0.7), (15, "NaN")):
        row = {"split": "validation", "step": step, "examples": step}
        with (tmp_path / "metrics.jsonl").open("a") as file:
            for numbers in ({"loss": 0.5, "auc": value}, {"coverage": 0.9}):
                file.write(json.dumps(row | numbers) + "\n")
        write_json(tmp_path / REQUEST_FILE, {"step": step})
        answer(running)
        assert read_json(tmp_path / ANSWER_FILE) == {"step": step, "stop": False}
    assert reported[:2] == [(3, 1, 0.6), (3, 2, 0.7)]
    assert reported[2][:2] == (3, 3) and reported[2][2] != reported[2][2]  # NaN


@pytest.mark.long
def test_a_stopped_job_has_saved_and_can_be_resumed(runner, tmp_path):
    words = ["search=quasi_random", "search.num_trials=4", "trainer.max_steps=36"]
    whole, short = both(runner, tmp_path, *words, "trainer.eval_every=4")
    stopped = [r for r in board(short) if r["status"] == "pruned"]
    assert stopped
    folder = short / stopped[0]["folder"]
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "pruned"
    assert result["signal"] is None
    step = int(stopped[0]["step"])
    assert (folder / f"checkpoints/step-{step}/manifest.json").exists()
    assert not list(folder.glob(".answer*")) + list(folder.glob(".evaluated*"))
    runner.run("resume", str(folder)).check()
    ended = json.loads((folder / "result.json").read_text())
    [twin] = [r for r in board(whole) if r["signature"] == stopped[0]["signature"]]
    assert ended["status"] == "completed"
    assert ended["metrics"]["test/auc"] == float(twin["test/auc"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_ends_before_it_has_its_answer_asks_again_when_it_is_resumed(
    runner, tmp_path, number
):
    run, env = tmp_path / "run", {"RUNNER_PRUNING": "1"}
    words = [*SMALL, "trainer.max_steps=8", "trainer.eval_every=4", f"hydra.run.dir={run}"]

    def ask(*args):
        process = runner.start(*args, env=env)
        until = time.monotonic() + 30
        while not (run / ".evaluated.json").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert json.loads((run / ".evaluated.json").read_text()) == {"step": 4}, process.text
        return process

    process = ask(*words)
    process.kill(number)
    assert process.wait() != 0
    (run / ".evaluated.json").unlink(missing_ok=True)
    process = ask("resume", str(run))
    write_json(run / ".answer.json", {"step": 4, "stop": True})
    process.finish().check()
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["step"]) == ("pruned", 4)


@pytest.mark.slow
def test_all_ranks_of_a_stopped_job_stop(runner, tmp_path):
    words = ["search=quasi_random", "search.num_trials=3", "search.pruner=asha"]
    words += ["trainer.max_steps=36", "trainer.eval_every=4", "trainer.num_processes=2"]
    sweep(runner, *words, *SMALL, *SPACE, f"hydra.sweep.dir={tmp_path / 's'}").check()
    assert {r["status"] for r in board(tmp_path / "s")} == {"completed", "pruned"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_asha_saves_a_third_of_the_updates_at_an_equal_best_result(runner, tmp_path, seed):
    words = ["search=quasi_random", "search.num_trials=16", f"search.seed={seed}"]
    started = time.monotonic()
    whole, short = both(runner, tmp_path, *words, "trainer.max_steps=180", "trainer.eval_every=20")
    saved = 1 - updates(short) / updates(whole)
    best = [max(float(r["validation/auc"]) for r in board(d)) for d in (whole, short)]
    print(f"{saved:.0%} of {updates(whole)} updates saved, best {best}")
    print(f"{time.monotonic() - started:.0f} s")
    assert saved >= 0.3
    assert best[1] == best[0]
    assert board(short)[0]["folder"] == board(whole)[0]["folder"]
