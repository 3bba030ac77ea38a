"""What a checkpoint restores in a job, also on a device of another kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runner.config.settings import CheckpointSettings
from runner.rundir.checkpoint import Checkpointer
from runner.training import state as state_module
from runner.training.job import Job
from runner.training.rng_state import rng_state_tensors
from runner.training.state import (
    TrainState,
    checkpoint_tensors,
    checkpoint_values,
    restore_checkpoint,
    restore_weights,
)
from runner.training.steps import set_learning_rates, steps
from runner.training.update.ema import MovingAverage
from tests.tiny import CPU, make_context, random_batch, snapshot
from tests.tiny_job import make_job
from tests.whole.user_schedules import Shrinking


def trained(num_updates: int, kind: str = "adagrad") -> tuple[Job, TrainState]:
    job, state = make_job(make_context(kind)), TrainState()
    for output in (o for o, _ in zip(steps(job, state), range(num_updates))):
        job.train_metrics.update(output.predictions[0], output.losses[0])
    return job, state


def save(folder: Path, job: Job, state: TrainState, rng_states: dict[str, torch.Tensor]):
    checkpointer = Checkpointer(folder, keep=1)
    live = checkpoint_tensors(job.context, job.train_metrics) | rng_states
    values = checkpoint_values(state, job.context, schedules=job.learning_rates.states())
    checkpointer.save(state.step, live, values, wait=True)
    return checkpointer.open_latest()


@pytest.mark.parametrize("was_on", ["cpu", "gpu"])
@pytest.mark.parametrize("resumes_on", ["cpu", "gpu"])
def test_a_run_resumes_where_it_was_also_on_a_device_of_another_kind(
    tmp_path, monkeypatch, was_on, resumes_on
):
    """The state of a GPU's generator is a tensor of the checkpoint, restored where a GPU is."""
    job, state = trained(3)
    cpu_states = rng_state_tensors(CPU, job.context.ranks)
    gpu_states = {"rng/cuda": torch.arange(16, dtype=torch.uint8)[None]}
    saved = save(tmp_path, job, state, cpu_states | (gpu_states if was_on == "gpu" else {}))
    drawn = torch.rand(3)
    other = make_job(make_context("adagrad"))
    generators = {n: t.clone() for n, t in rng_state_tensors(CPU, job.context.ranks).items()}
    if resumes_on == "gpu":
        generators["rng/cuda"] = torch.zeros(1, 16, dtype=torch.uint8)
    monkeypatch.setattr(state_module, "rng_state_tensors", lambda *_: generators)
    restored = []
    restore = state_module.restore_rng_state
    monkeypatch.setattr(
        state_module,
        "restore_rng_state",
        lambda states, *more: (restored.append(set(states)), restore(states, *more)),
    )
    again = restore_checkpoint(other, saved)
    assert again == state
    assert torch.equal(torch.rand(3), drawn)
    expected_names = {"rng/torch"} | ({"rng/cuda"} if was_on == resumes_on == "gpu" else set())
    assert restored == [expected_names]
    if resumes_on == "gpu":
        expected = torch.arange(16) if was_on == "gpu" else torch.zeros(16)
        assert torch.equal(generators["rng/cuda"][0], expected.to(torch.uint8))
    before, after = snapshot(job.context), snapshot(other.context)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert other.train_metrics.compute() == job.train_metrics.compute()


def test_what_starts_from_a_checkpoint_as_debug_does_has_the_rates_of_the_training(tmp_path):
    job, state = trained(3)
    rates = replace(job.learning_rates, factor=Shrinking(rate=0.5))
    job = replace(job, learning_rates=rates)
    first = set_learning_rates(job, state)
    saved = save(tmp_path, job, state, rng_state_tensors(CPU, job.context.ranks))
    fresh = replace(rates, factor=Shrinking(rate=0.5))
    other = replace(make_job(make_context("adagrad")), learning_rates=fresh)
    restore_checkpoint(other, saved)
    second = set_learning_rates(other, state)
    assert second == {name: rate / 2 for name, rate in first.items()}


def test_a_model_of_tables_alone_has_no_averages_and_is_evaluated_all_the_same(tmp_path):
    job, state = trained(3)
    job.context.ema = MovingAverage({}, decay=0.9, warmup=False, use_in_evaluation=True)
    saved = save(tmp_path, job, state, rng_state_tensors(CPU, job.context.ranks))
    other = make_context("adagrad")
    other.ema = MovingAverage({}, decay=0.9, warmup=False, use_in_evaluation=True)
    restore_weights(other, saved)
    before, after = snapshot(job.context), snapshot(other)
    assert all(torch.equal(after[n], t) for n, t in before.items() if n.endswith("weight"))


def test_a_resume_without_states_may_begin_to_decay_whole_tables(tmp_path):
    job, state = trained(3, "sgd")
    saved = save(tmp_path, job, state, rng_state_tensors(CPU, job.context.ranks))
    other = replace(
        make_job(make_context("sgd", l2_tables=0.01)),
        checkpoint=CheckpointSettings(optimizer_state="fresh"),
    )
    assert restore_checkpoint(other, saved).step == state.step
    before, after = snapshot(job.context), snapshot(other.context)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    ids = random_batch(8, seed=5)
    assert torch.equal(*(j.context.model.embed(ids).pooled_BE for j in (job, other)))
