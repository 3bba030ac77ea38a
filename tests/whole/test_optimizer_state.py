"""A resume without the optimizers' states, and a run of which nothing is saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import TRACED, differences, newest_checkpoint, read_rows

FRESH = "checkpoint.optimizer_state=fresh"
LR = 0.001


@pytest.fixture(scope="module")
def source(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 updates with Adam."""
    run = tmp_path_factory.mktemp("source") / "run"
    runner.run(*TRACED, *words(run, 20), env={"TRACE_FILE": f"{run}.trace"}).check()
    return run


def words(run: Path, steps: int) -> tuple[str, ...]:
    rates = (f"optimizer.sparse.lr={LR}", f"optimizer.dense.lr={LR}")
    return (*TINY, "optimizer=adam", *rates, f"trainer.max_steps={steps}", f"hydra.run.dir={run}")


def resume(runner: Zygote, source: Path, run: Path, *more: str, kill: str = ""):
    if not run.exists():
        shutil.copytree(source, run)
    env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
    return runner.run("resume", str(run), "--allow", "tests", *more, env=env)


@pytest.mark.parity("E18")
def test_the_first_update_without_states_is_that_of_a_new_adam(runner, source, tmp_path):
    run = tmp_path / "run"
    done = resume(runner, source, run, FRESH, "trainer.max_steps=21").check()
    assert "resuming from step 20" in done.text and "without the optimizers' states" in done.text
    before, after = (
        open_checkpoint(r / f"checkpoints/step-{s}") for r, s in ((source, 20), (run, 21))
    )
    assert after.step == 21 and after.values["cursor"] != before.values["cursor"]
    names = [n for n in tensor_shapes(after) if n.endswith(".weight") or n.endswith("/weight")]
    old, new = read_tensors(before, names), read_tensors(after, names)
    for name in names:  # Adam's first update: lr * g / (|g| + eps), so lr wherever g is not tiny
        moved = (new[name] - old[name]).abs()
        assert moved.max() == pytest.approx(LR, rel=1e-2), name
        assert (moved <= LR * 1.01).all(), name
    steps = [n for n in tensor_shapes(after) if n.startswith("dense_optimizer/") and "/step" in n]
    assert steps and {t.item() for t in read_tensors(after, steps).values()} == {1.0}
    moments = read_tensors(after, ["tables/C1/exp_avg_sq"])["tables/C1/exp_avg_sq"]
    assert (
        (moments > 0).any(1) == (new["tables/C1/weight"] != old["tables/C1/weight"]).any(1)
    ).all()


@pytest.mark.long
@pytest.mark.parity("E18")
@pytest.mark.parametrize("kill", ["step:1", "step:9"])
def test_a_kill_after_it_resumes_as_if_there_had_been_none(runner, source, tmp_path, kill):
    run, quiet = tmp_path / "run", tmp_path / "quiet"
    longer = "trainer.max_steps=32"
    resume(runner, source, quiet, FRESH, longer).check()
    resume(runner, source, run, FRESH, longer, kill=kill).check(-9)
    assert "optimizer_state: kept" in (run / "config.yaml").read_text()  # for one command
    resume(runner, source, run).check()
    assert differences(run, quiet) == []
    kept = tmp_path / "kept"
    resume(runner, source, kept, longer).check()
    assert any(name.startswith("tables/") for name in differences(run, kept))


def test_another_optimizer_goes_on_only_without_the_states(runner, source, tmp_path):
    run, more = tmp_path / "run", ("optimizer=sgd", "trainer.max_steps=24")
    dense_alone = ("optimizer.dense._target_=torch.optim.RMSprop", "trainer.max_steps=24")
    for words in (more, dense_alone):
        refused = resume(runner, source, run, *words).check(2)
        assert FRESH in refused.text
    resume(runner, source, run, *more, FRESH).check()
    names = tensor_shapes(open_checkpoint(newest_checkpoint(run)))
    assert not [n for n in names if "exp_avg" in n]


@pytest.mark.long
@pytest.mark.parity("E18")
def test_nothing_is_saved_with_keep_0(runner, source, tmp_path):
    run = tmp_path / "run"
    fast = ("optimizer.dense.lr=0.5", "checkpoint.keep=0")  # the best is not the last
    done = runner.run(*words(run, 20), "trainer.eval_every=2", *fast).check()
    assert "nothing is saved" in done.text
    assert not list(run.glob("checkpoints*"))
    result = json.loads((run / "result.json").read_text())
    assert "checkpoint" not in result
    assert result["best"]["step"] != 20
    rows = read_rows(run)
    last = [r for r in rows if r["split"] == "validation" and r["step"] == 20]
    assert result["metrics"]["validation/auc"] == last[-1]["auc"]
    test = [r for r in rows if r["split"] == "test"]
    assert [(r["step"], r["examples"]) for r in test] == [(20, result["examples"])]
    again = runner.run(*words(run, 20), "trainer.eval_every=2", *fast)
    assert again.code == 0 and "done already" in again.text


@pytest.mark.long
def test_keep_0_starts_again_at_step_0_and_never_beside_a_checkpoint(runner, source, tmp_path):
    unsaved = tmp_path / "unsaved"
    first = (*words(unsaved, 9), "checkpoint.keep=0")
    runner.run(*first).check()
    done = runner.run("resume", str(unsaved), "trainer.max_steps=12")
    assert done.code == 0 and "starting again at step 0" in done.text
    whole = tmp_path / "whole"
    runner.run(*words(whole, 12), "checkpoint.keep=0").check()
    assert (unsaved / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    run = tmp_path / "run"
    refused = resume(runner, source, run, "checkpoint.keep=0", "trainer.max_steps=24").check(2)
    assert "has a checkpoint of step 20" in refused.text
    saved = read_tensors(open_checkpoint(newest_checkpoint(run)), ["dense/top.0.weight"])
    assert torch.isfinite(saved["dense/top.0.weight"]).all()
    resume(runner, source, run, "trainer.max_steps=24").check()
