"""Batch norm in whole updates: micro-batches, skipped updates, averages, closures, trials."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner.batch import Schema
from runner.embeddings.factory import build_tables
from runner.embeddings.frozen_tables import FROZEN_SETTINGS, FrozenTables
from runner.models.losses import ByKind
from runner.training.loops.rollback import restored_after
from runner.training.state import TrainState, ema_tensors, weight_tensors
from runner.training.steps import steps
from runner.training.update.context import Context
from runner.training.update.ema import MovingAverage
from runner.training.update.parameters import dense_parameters, running_statistics
from runner.training.update.task import Supervised
from tests.models.scene import SMALL, TWO_TASKS, batch_of, from_yaml, make_model
from tests.models.sequence_scene import SCHEMA as HISTORIES
from tests.models.sequence_scene import batch_of as batch_of_histories
from tests.tiny import CPU, SCHEMA, make_context, random_batch, snapshot
from tests.tiny_job import Rows, make_job


def normed(name: str = "dlrm", schema: Schema = SCHEMA, **settings) -> Context:
    more = {"norm": "batch", **settings.pop("net", {})}
    return make_context(model=make_model(name, schema, **more), loss=ByKind(schema), **settings)


def update(context: Context, batch) -> bool:
    output = Supervised().train_step(context, iter([batch]))
    context.end_update(applied=output.applied)
    return output.applied


def state_of(context: Context) -> dict[str, torch.Tensor]:
    return snapshot(context) | {
        name: buffer.clone() for name, buffer in running_statistics(context.model).items()
    }


def assert_close(ours: dict, theirs: dict, atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=atol, msg=name)


WITHOUT_MLP = ("eulernet", "fwfm")  # these take no norm


@pytest.mark.parametrize("activation", ["relu", "dice"])
@pytest.mark.parametrize("name", [n for n in SMALL if not n.startswith(WITHOUT_MLP)])
def test_over_the_update_micro_batches_equal_one_batch(name, activation):
    net = {"activation": activation}
    whole, parts = (normed(name, TWO_TASKS, micro_batch_size=m, net=net) for m in (64, 13))
    for seed in range(3):
        batch = batch_of(TWO_TASKS, 64, seed)
        batch.weights_B[::7] = 0.0
        for context in (whole, parts):
            assert update(context, batch)
    assert_close(state_of(parts), state_of(whole), 1e-6)


@pytest.mark.parametrize("name", ["deepfm", "masknet"])
def test_within_micro_batches_each_has_statistics_of_its_own(name):
    """By hand: torch's batch norm on each micro-batch, the gradients weighed by its rows."""
    net = {"norm_scope": "micro_batch"}
    context, twin = (normed(name, micro_batch_size=m, net=net) for m in (10, 1 << 20))
    batch = batch_of(SCHEMA, 25)
    update(context, batch)
    total = batch.weights_B.sum()
    embeddings = twin.model.embed(batch)
    loss = 0.0
    for low in (0, 10, 20):
        rows = slice(low, low + 10)
        part = replace(
            batch,
            dense_BD=batch.dense_BD[rows],
            labels_BT=batch.labels_BT[rows],
            weights_B=batch.weights_B[rows],
            groups_BG=batch.groups_BG[rows],
        )
        own = replace(embeddings, pooled_BE=embeddings.pooled_BE[rows])
        losses = twin.loss(twin.model.dense(own, part))["click"]
        loss = loss + (losses * part.weights_B).sum() / total
    loss.backward()
    twin.dense_optimizer.step()
    twin.end_update(applied=True)
    assert_close(state_of(context), state_of(twin), 1e-6)


def test_dice_in_din_does_not_count_places_behind_a_history():
    """The statistics are those of the histories' places alone, whatever is padded."""
    settings = {"embedding_dim": 4, "attention": [5], "top": [6], "activation": "dice"}
    context = make_context(model=from_yaml("din", HISTORIES, **settings), loss=ByKind(HISTORIES))
    batch = batch_of_histories()
    embeddings = context.model.embed(batch)
    unit = context.model.activations[0].unit
    seen = []
    unit[0].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    update(context, batch)
    length_B = embeddings.per_row["history:length"]
    longest = embeddings.sequences_BLD[0].shape[1]
    counts = torch.arange(longest) < length_B[:, None]
    assert counts.any() and not counts.all()
    expected = 0.1 * seen[0][counts.flatten()].mean(0)
    torch.testing.assert_close(unit[1].norm.running_mean, expected, rtol=1e-5, atol=1e-7)


def test_an_update_that_is_skipped_changes_nothing_and_the_next_ones_are_as_without_it():
    context, twin = normed(), normed()
    poisoned = random_batch(32, 9)
    poisoned.dense_BD[3, 0] = float("nan")
    assert update(context, random_batch(32, 1))
    before = state_of(context)
    assert not update(context, poisoned)
    assert_close(state_of(context), before, 0)
    update(context, random_batch(32, 2))
    for seed in (1, 2):
        update(twin, random_batch(32, seed))
    assert_close(state_of(context), state_of(twin), 0)


def test_running_statistics_are_averaged_as_torch_averages_buffers():
    context = normed("mlp")  # a DLRM has buffers of indices, which torch would average too
    named = dense_parameters(context.model, context.loss) | running_statistics(context.model)
    context.ema = MovingAverage(named, decay=0.9, warmup=False, use_in_evaluation=True)
    twin = AveragedModel(context.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    twin.update_parameters(context.model)
    for _, _ in zip(range(4), steps(make_job(context), TrainState())):
        twin.update_parameters(context.model)
    theirs = dict(twin.module.named_parameters()) | dict(twin.module.named_buffers())
    names = [name for name in context.ema.tensors() if "running" in name]
    assert len(names) == 4, "two norms"
    for name in names:
        torch.testing.assert_close(context.ema.tensors()[name], theirs[name])
    weights, batch = weight_tensors(context), random_batch(8)
    context.model.eval()
    now = context.model(batch).logits_BT
    with context.evaluation_weights():
        average = context.model(batch).logits_BT
        theirs = twin.module.eval().dense(context.model.embed(batch), batch)
        torch.testing.assert_close(average, theirs.logits_BT)
    assert torch.equal(context.model(batch).logits_BT, now)
    assert not torch.equal(average, now)
    assert {f"ema/{name}" for name in names} <= ema_tensors(context).keys()
    assert {f"dense/{name}" for name in names} <= weights.keys()


def test_a_closure_leaves_the_statistics_of_its_last_evaluation():
    context = normed(net={"activation": "tanh"})
    lookup = context.model.embedding
    tables = build_tables(lookup.specs, lookup.features, FROZEN_SETTINGS, seed=0, device=CPU)
    lookup.attach_tables(FrozenTables(tables, device=CPU))
    context.dense_optimizer = torch.optim.LBFGS(context.dense_parameters, lr=0.1, max_iter=4)
    batch, means = random_batch(32), []
    norm = context.batch_norms[0]
    forget = norm.forget_update
    norm.forget_update = lambda: (means.extend(norm.seen[1:2] if norm.seen else ()), forget())
    assert update(context, batch)
    assert len(means) > 3, "several evaluations"
    torch.testing.assert_close(norm.running_mean, 0.1 * means[-1])
    assert norm.seen is None


def test_trials_restore_the_running_statistics():
    context = normed()
    job = make_job(context, dataset=Rows(96))
    for _, _ in zip(range(2), steps(job, TrainState())):
        pass
    before = state_of(context)
    with restored_after(job):
        for _, _ in zip(range(2), steps(job, TrainState())):
            pass
        assert not torch.equal(
            running_statistics(context.model)["top.1.running_mean"], before["top.1.running_mean"]
        )
    assert_close(state_of(context), before, 0)


def test_an_evaluation_does_not_depend_on_its_batches():
    context = normed()
    for seed in range(3):
        update(context, random_batch(64, seed))
    context.model.eval()
    before, data = state_of(context), Rows(48)
    whole, *parts = (
        torch.cat([context.model(b).logits_BT for b in data.batches("train", batch_size=n)])
        for n in (48, 7, 1)
    )
    for part in parts:
        torch.testing.assert_close(part, whole, rtol=0, atol=1e-5)
    assert_close(state_of(context), before, 0)


def test_under_autocast_the_statistics_are_float32_and_it_learns():
    context, plain = normed(amp=True), normed()
    for seed in range(3):
        assert update(context, random_batch(64, seed))
        assert update(plain, random_batch(64, seed))
    for name, buffer in running_statistics(context.model).items():
        assert buffer.dtype == torch.float32
        theirs = running_statistics(plain.model)[name]
        torch.testing.assert_close(buffer, theirs, rtol=0.02, atol=0.02)
