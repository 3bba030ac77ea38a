"""The moving average against torch's own, in evaluations, and over a resume."""

from __future__ import annotations

import json

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner import load
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from runner.training.loops.evaluate_split import evaluate_split
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.ema import MovingAverage
from runner.training.update.parameters import dense_parameters
from tests.conftest import TINY
from tests.tiny import make_context
from tests.tiny_job import Rows, make_job
from tests.whole.compare_runs import assert_resumes_exactly, newest_checkpoint, read_rows


def averaged(context, **settings) -> MovingAverage:
    settings = {"decay": 0.9, "warmup": False, "use_in_evaluation": True, **settings}
    context.ema = MovingAverage(dense_parameters(context.model, context.loss), **settings)
    return context.ema


@pytest.mark.parity("E6")
def test_it_equals_torchs_own_average_after_every_update():
    context = make_context()
    average = averaged(context)
    twin = AveragedModel(context.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    twin.update_parameters(context.model)  # the first call copies
    job = make_job(context)
    for number, _ in enumerate(steps(job, TrainState())):
        twin.update_parameters(context.model)
        theirs = dict(twin.module.named_parameters())
        for name, tensor in average.tensors().items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-6, atol=1e-7)
        if number == 4:
            break
    assert not torch.equal(tensor, dict(context.model.named_parameters())[name])


def test_warm_up_starts_with_a_small_decay_by_the_updates_that_were_applied():
    context = make_context(lr=0.3)
    average = averaged(context, warmup=True, decay=0.5)
    assert [average.decay_at(k) for k in (1, 2, 8, 100)] == [2 / 11, 3 / 12, 0.5, 0.5]
    names = list(average.tensors())
    twin = {n: t.double() for n, t in average.tensors().items()}
    data = Rows(160)
    data.all.dense_BD[40] = float("nan")  # the second update is skipped
    job, applied = make_job(context, dataset=data), 0
    for _, output in zip(range(4), steps(job, TrainState())):
        if output.applied:
            applied += 1
            decay = min(0.5, (1 + applied) / (10 + applied))
            now = dict(context.model.named_parameters())
            twin = {n: decay * twin[n] + (1 - decay) * now[n].detach().double() for n in names}
        for name in names:
            torch.testing.assert_close(average.tensors()[name].double(), twin[name])
    assert applied == 3


@pytest.mark.parametrize("evaluate", [True, False])
@pytest.mark.parity("E6")
def test_an_evaluation_uses_the_chosen_weights_and_then_restores_the_weights_bit_for_bit(evaluate):
    plain, context = make_context(), make_context()
    average = averaged(context, use_in_evaluation=evaluate)
    for tensor in average.tensors().values():
        tensor.add_(0.1)
    if evaluate:  # a model that has the averages as its weights
        for parameter in dense_parameters(plain.model, plain.loss).values():
            parameter.data.add_(0.1)
    before = {n: p.detach().clone() for n, p in context.model.named_parameters()}
    averages = {n: t.clone() for n, t in average.tensors().items()}
    job = make_job(context)
    assert evaluate_split(job, "train") == evaluate_split(make_job(plain), "train")
    assert all(torch.equal(p, before[n]) for n, p in context.model.named_parameters())
    assert all(torch.equal(t, averages[n]) for n, t in average.tensors().items())


def test_an_evaluation_that_fails_gives_the_weights_back(monkeypatch):
    context = make_context()
    average = averaged(context)
    average.tensors()["top.0.weight"].zero_()
    job = make_job(context)

    def fail(*args):
        raise RuntimeError("a bad batch")

    monkeypatch.setattr(job.task, "eval_step", fail, raising=False)
    with pytest.raises(RuntimeError, match="a bad batch"):
        evaluate_split(job, "train")
    assert context.model.get_parameter("top.0.weight").abs().sum() > 0


WORDS = (*TINY, "trainer.ema.decay=0.8")


def validation(run) -> list[float]:
    return [r["loss"] for r in read_rows(run, "validation")]


@pytest.mark.long
def test_a_run_killed_and_resumed_has_the_same_averages_and_eval_takes_them(runner, tmp_path):
    run = tmp_path / "run"
    assert_resumes_exactly(runner, WORDS, run, tmp_path / "unbroken", "step:23")
    saved = open_checkpoint(newest_checkpoint(run))
    ours, average = ("dense/top.0.weight", "ema/top.0.weight")
    found = read_tensors(saved, [ours, average])
    assert not torch.equal(found[ours], found[average])
    scoring = load(run, allow=["tests"]).model("last")  # nothing else is kept of what loaded it
    assert torch.equal(scoring.get_parameter("top.0.weight"), found[average])

    def evaluated(*more: str) -> float:
        folder = tmp_path / f"eval{len(more)}"
        env = {"TRACE_FILE": f"{folder}.trace"}
        words = ("--allow", "tests", "loop=eval", f"run={run}", "loop.split=validation")
        runner.run(
            *words, "checkpoint.step=last", f"hydra.run.dir={folder}", *more, env=env
        ).check()
        return json.loads((folder / "result.json").read_text())["metrics"]["validation/loss"]

    assert evaluated() == validation(run)[-1]
    assert evaluated("trainer.ema.evaluate=false") != validation(run)[-1]


@pytest.mark.long
def test_a_run_without_averages_cannot_be_evaluated_by_them_but_can_begin_to_keep_them(
    runner, tmp_path
):
    run = tmp_path / "run"
    runner.run(*TINY, f"hydra.run.dir={run}", "trainer.max_steps=8").check()
    refused = runner.run(
        "loop=eval", f"run={run}", "trainer.ema.decay=0.9", f"hydra.run.dir={tmp_path / 'eval'}"
    ).check(2)
    assert "holds no moving average" in refused.text
    runner.run("resume", str(run), "trainer.ema.decay=0.9", "trainer.max_steps=12").check()
