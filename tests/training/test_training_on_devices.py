"""A short training on a GPU: the CPU's losses, low precision, and a resume that is exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from runner.config.settings import TrainerSettings
from runner.models.dlrm import DLRM
from runner.rundir.checkpoint import Checkpointer
from runner.training.job import Job
from runner.training.rng_state import rng_state_tensors
from runner.training.state import (
    TrainState,
    checkpoint_tensors,
    checkpoint_values,
    restore_checkpoint,
)
from runner.training.steps import steps
from runner.training.update.parameters import dense_parameters
from tests.devices import DEVICES, ON_GPU, tolerance
from tests.tiny import CPU, SCHEMA, make_context, snapshot
from tests.tiny_job import Rows, make_job


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def job_on(device: torch.device, kind: str, *, dropout: float = 0.0, **more) -> Job:
    torch.manual_seed(0)
    model = DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8], dropout=dropout)
    context = make_context(kind, model=model, device=device, **more)
    named = dense_parameters(context.model, context.loss)
    context.dense_optimizer = torch.optim.Adam(named.values(), lr=0.1, fused=True)
    context.__post_init__()
    trainer = TrainerSettings(batch_size=16, accumulate=2, max_epochs=2)
    return make_job(context, dataset=Rows(150), trainer=trainer)


def train(job: Job, state: TrainState, until: int = 10) -> list[float]:
    """The weighted mean loss of each update up to this one; all go into the train metrics."""
    found = []
    for output in steps(job, state):
        assert output.applied
        sums = torch.zeros(2, dtype=torch.float64)
        for prediction, losses in zip(output.predictions, output.losses):
            job.train_metrics.update(prediction, losses)
            weights_B = prediction.weights_B.double()
            sums += torch.stack(
                ((losses["click"].double() * weights_B).sum(), weights_B.sum())
            ).cpu()
        found.append(float(sums[0] / sums[1]))
        if state.step == until:
            break
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam", "lamb"])
def test_a_device_has_the_losses_of_the_cpu(kind, device):
    ours, theirs = job_on(device, kind), job_on(CPU, kind)
    losses = train(ours, TrainState())
    assert len(losses) == 10 and losses[-1] < losses[0]
    near = tolerance(device, 0.0, 1e-4)
    assert losses == pytest.approx(train(theirs, TrainState()), rel=0, abs=near)
    metrics, expected = ours.train_metrics.compute(), theirs.train_metrics.compute()
    assert metrics == pytest.approx(expected, rel=0, abs=near)


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_learns_as_float32_does(device):
    full = train(job_on(device, "adagrad"), TrainState())
    low = train(job_on(device, "adagrad", amp=True), TrainState())
    assert low != full
    assert low == pytest.approx(full, rel=0, abs=0.05)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adam"])
def test_a_training_goes_on_from_its_checkpoint_bit_for_bit(kind, device, tmp_path, deterministic):
    """Dropout draws from the device's generator, which is a part of the checkpoint."""
    whole, state = job_on(device, kind, dropout=0.3), TrainState()
    losses = train(whole, state)
    first, early = job_on(device, kind, dropout=0.3), TrainState()
    assert train(first, early, until=4) == losses[:4]
    checkpointer = Checkpointer(tmp_path, keep=1)
    live = checkpoint_tensors(first.context, first.train_metrics)
    live |= rng_state_tensors(device, first.context.ranks)
    checkpointer.save(4, live, checkpoint_values(early, first.context), wait=True)
    torch.rand(7, device=device)
    again = job_on(device, kind, dropout=0.3)  # seeds all generators anew
    saved = checkpointer.open_latest()
    assert saved is not None
    assert train(again, restore_checkpoint(again, saved)) == losses[4:]
    ours, theirs = snapshot(again.context), snapshot(whole.context)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert again.train_metrics.compute() == whole.train_metrics.compute()


@pytest.mark.parametrize("was_on", [CPU, pytest.param(torch.device("cuda", 0), marks=ON_GPU)])
@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_one_device_is_one_of_another(was_on, device, tmp_path):
    job, state = job_on(was_on, "adagrad"), TrainState()
    losses = train(job, state, until=4)
    live = checkpoint_tensors(job.context, job.train_metrics) | rng_state_tensors(
        was_on, job.context.ranks
    )
    checkpointer = Checkpointer(tmp_path, keep=1)
    checkpointer.save(4, live, checkpoint_values(state, job.context), wait=True)
    other, saved = job_on(device, "adagrad"), checkpointer.open_latest()
    assert saved is not None
    losses += train(other, restore_checkpoint(other, saved))
    near = 0.0 if was_on == device == CPU else 1e-4
    expected = train(job_on(CPU, "adagrad"), TrainState())
    assert losses == pytest.approx(expected, rel=0, abs=near)
